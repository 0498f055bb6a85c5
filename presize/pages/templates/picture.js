// Draws the animations of a page, all from the timelines that the page embeds as JSON.
"use strict";
{
  const SPEEDS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100];
  const MOST_LOADERS = 64, MOST_SLOTS = 48, VIEWED_A_SECOND = 6, CLOSE = 1e-9;

  const make = (parent, tag, kind) => {
    const made = parent.appendChild(document.createElement(tag));
    made.className = kind || "";
    return made;
  };

  const draw = (parent, kind, d) => {
    const path = parent.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "path"));
    path.setAttribute("class", kind);
    path.setAttribute("d", d);
  };

  const many = (count, one, more) => `${count.toLocaleString("en")} ${count === 1 ? one : more || one + "es"}`;
  const clock = (seconds, of) => seconds.toFixed(of < 2 ? 3 : of < 20 ? 2 : 1);

  // One timeline, and its state at any moment. Moments that were not reached are infinite.
  class Course {
    constructor(known) {
      Object.assign(this, known);
      this.loads = known.loads.map(([worker, number, begin, work, ...moments]) => {
        const [loaded, ready, taken, copied, done] = moments.map((at) => at ?? Infinity);
        return {worker, number, begin, work, loaded, ready, taken, copied, done};
      });
      const reached = (moment) => this.loads.filter((load) => load[moment] < Infinity).sort((one, other) => one[moment] - other[moment]);
      this.ready = reached("ready");
      this.steps = reached("taken");
      this.of = Array.from({length: Math.max(this.workers, 1)}, (_, number) => this.loads.filter((load) => load.worker === number));
      const all = !this.cut && this.loads.length === this.steps.length && this.steps.at(-1)?.done < Infinity;
      this.total = all ? this.loads.length : Infinity;
      this.slots = this.workers * this.prefetch;
    }

    at(seconds) {
      const at = Math.min(seconds, this.seconds), by = (moment) => moment <= at + CLOSE;
      const taken = this.steps.filter((step) => by(step.taken)).length;
      const step = this.steps[taken - 1], training = step && !by(step.done);
      return {
        at, taken, step, training,
        done: this.steps.filter((one) => by(one.done)).length,
        over: taken === this.total && !training,
        copying: training && !by(step.copied),
        queue: this.ready.filter((load) => by(load.ready) && !by(load.taken)).map((load) => load.number),
      };
    }

    // What a worker is doing: its load and the share of it that is done; no load when it is idle.
    loader(number, at) {
      const load = this.of[number].findLast((one) => one.begin <= at + CLOSE);
      if (!load || load.loaded <= at + CLOSE) return {first: !load, load: undefined};
      return {load, share: this.share(load, at)};
    }

    find(number) {
      return this.loads.find((load) => load.number === number);
    }

    share(load, at) {
      if (!load || at < load.begin) return 0;
      const isCut = load.loaded === Infinity;
      return Math.min(isCut ? 0.99 : 1, (at - load.begin) / ((isCut ? load.work : load.loaded - load.begin) || 1));
    }

    events() {
      const moments = this.loads.flatMap(({begin, loaded, ready, taken, copied, done}) => [begin, loaded, ready, taken, copied, done]);
      return [0, this.seconds, ...moments.filter((at) => at < Infinity)];
    }

    // Start of the animation: late in the longest wait of the middle half of the first `until` seconds, or at its start.
    telling(until) {
      let best = 0, at = until / 4;
      for (let i = 1; i < this.steps.length; i++) {
        const from = this.steps[i - 1].done, wait = this.steps[i].taken - from;
        if (from > until / 4 && from < until * 3 / 4 && wait > best * 1.01 && wait > 0.01 * until) {
          best = wait;
          at = from + 0.7 * wait;
        }
      }
      return at;
    }
  }

  // The elements of one variant, and what they show at a moment.
  class Variant {
    constructor(place, course, seconds) {
      this.course = course;
      this.seconds = seconds;
      this.find = (selector) => place.querySelector(selector);
      const loaders = Math.min(course.of.length, MOST_LOADERS), slots = Math.min(course.slots, MOST_SLOTS);
      const list = this.find(".loaders");
      list.style.setProperty("--row", loaders > 8 ? (loaders > 24 ? "7rem" : "9.5rem") : "100%");
      this.loaders = Array.from({length: loaders}, (_, number) => {
        const line = make(list, "li");
        make(line, "span", "name").textContent = course.workers ? number + 1 : "–";
        const lane = make(line, "div", "lane");
        return {lane, fill: make(lane, "span", "fill"), said: make(lane, "span", "said"), share: make(lane, "span", "share")};
      });
      this.short = loaders > 8;
      this.more(list, course.of.length - loaders, "worker", "workers");
      if (course.slots) {
        const queue = this.find(".queue");
        this.slots = Array.from({length: slots}, () => {
          const box = make(queue, "li", "slot");
          return {box, fill: make(box, "i"), said: make(box, "b")};
        });
        this.more(queue, course.slots - slots, "slot", "slots");
        this.find(".slots").textContent = course.slots.toLocaleString("en");
      }
      this.training = this.find(".training");
      this.veils = [...place.querySelectorAll(".field")].map((field) => {
        const svg = field.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "svg"));
        svg.setAttribute("viewBox", "0 0 1000 100");
        svg.setAttribute("preserveAspectRatio", "none");
        svg.setAttribute("aria-hidden", "true");
        this.plot(svg, field.parentElement.classList[1]);
        return make(field, "div", "veil");
      });
    }

    more(list, count, one, many_) {
      const note = list.parentElement.querySelector(".more");
      note.hidden = count <= 0;
      note.textContent = `and ${count.toLocaleString("en")} more ${count === 1 ? one : many_}, not shown`;
    }

    plot(svg, kind) {
      const {course} = this, x = (at) => (Math.min(at, course.seconds) / this.seconds * 1000).toFixed(2);
      if (kind === "course") {
        let works = "", copies = "";
        for (const step of course.steps) {
          if (step.copied > step.taken) copies += `M${x(step.taken)} 100V55H${x(step.copied)}V100Z`;
          if (step.copied < Infinity) works += `M${x(step.copied)} 100V8H${x(step.done)}V100Z`;
        }
        draw(svg, "area", copies);
        draw(svg, "solid", works);
      } else {
        const y = (length) => (98 - 94 * length / course.slots).toFixed(2);
        const changes = [...course.ready.map((load) => [load.ready, 1]), ...course.steps.map((step) => [step.taken, -1])];
        changes.sort((one, other) => one[0] - other[0] || other[1] - one[1]);
        let length = 0, line = `M0 ${y(0)}`;
        changes.forEach(([at, change], i) => {
          length += change;
          if (changes[i + 1]?.[0] !== at) line += `H${x(at)}V${y(length)}`;
        });
        line += `H${x(course.seconds)}`;
        draw(svg, "area", `${line}V100H0Z`);
        draw(svg, "line", line);
      }
    }

    show(seconds) {
      const {course} = this, now = course.at(seconds);
      this.loaders.forEach((shown, number) => this.showLoader(shown, number, now));
      if (course.slots) this.showQueue(now);
      this.showTraining(now);
      const set = (selector, text, value) => {
        const shown = this.find(selector);
        shown.textContent = text;
        shown.dataset.value = value;
      };
      set(".batches", now.done.toLocaleString("en"), now.done);
      if (course.batch) set(".images", many(now.done * course.batch, "image", "images"), now.done * course.batch);
      for (const veil of this.veils) veil.style.left = `calc(${seconds / this.seconds * 100}% - 1px)`;
    }

    showLoader(shown, number, now) {
      const {load, share, first} = this.course.loader(number, now.at);
      shown.lane.classList.toggle("rests", !load);
      shown.share.textContent = load && !this.short ? `${Math.floor(share * 100)}%` : "";
      shown.fill.style.width = load ? `${share * 100}%` : "0";
      const rests = now.over ? "done" : first ? "not started" : this.short ? "idle" : this.course.workers ? "idle: its queue is full" : "idle during the step";
      shown.said.textContent = load ? `${this.short ? "" : "batch "}${load.number + 1}` : rests;
    }

    showQueue(now) {
      const {course} = this, length = now.queue.length;
      this.find(".queued").textContent = `${length === 0 ? "no finished batches" : many(length, "finished batch", "finished batches")}`;
      const ready = new Set(now.queue);
      this.slots.forEach(({box, fill, said}, place) => {
        const batch = course.inOrder ? now.taken + place : now.queue[place];
        const load = course.find(batch);
        const kind = ready.has(batch) ? "ready" : course.inOrder && load && load.begin <= now.at + CLOSE ? "making" : "asked";
        box.hidden = course.inOrder && batch >= course.total;
        box.className = `slot ${kind}${place === 0 && (course.inOrder || length) ? " next" : ""}`;
        fill.style.height = kind === "making" ? `${course.share(load, now.at) * 100}%` : "0";
        said.textContent = batch === undefined || batch >= course.total ? "" : batch + 1;
      });
    }

    showTraining(now) {
      const {course} = this, [fill, said] = this.training.children;
      const kind = now.training ? (now.copying ? "copies" : "works") : now.over ? "over" : "waits";
      this.training.className = `lane training ${kind}`;
      const {step} = now;
      const share = kind === "works" ? (now.at - step.copied) / (Math.min(step.done, course.seconds) - step.copied || 1) : 0;
      fill.style.width = kind === "works" ? `${Math.min(1, share) * 100}%` : "0";
      const [what, why] = {
        works: () => [`trains on batch ${step.number + 1}`, now.queue.length ? `batch ${course.inOrder ? now.taken + 1 : now.queue[0] + 1} is next` : ""],
        copies: () => [`copies batch ${step.number + 1} to the device`, ""],
        over: () => [`done after ${clock(course.seconds, course.seconds)} s`, ""],
        waits: () => this.reason(now),
      }[kind]();
      said.replaceChildren();
      make(said, "strong").textContent = what;
      said.append(why);
    }

    reason(now) {
      const {course} = this;
      if (!course.inOrder && course.workers) return ["waits for any batch", "none is finished yet"];
      const load = course.find(now.taken), begun = load && load.begin <= now.at + CLOSE;
      const share = begun ? `${Math.floor(course.share(load, now.at) * 100)}%` : "";
      if (!course.workers) return [`loads batch ${now.taken + 1} itself`, begun ? `${share} done` : ""];
      const behind = now.queue.length ? `; ${many(now.queue.length, "finished batch", "finished batches")} queued behind it` : "";
      const made = load && load.loaded <= now.at + CLOSE ? "it is being pinned" : begun ? `worker ${load.worker + 1} has loaded ${share} of it` : "no worker has started it";
      return [`waits for batch ${now.taken + 1}`, made + behind];
    }
  }

  // One clock for all variants, and its controls.
  class Picture {
    constructor(place) {
      this.place = place;
      const courses = JSON.parse(place.querySelector('script[type="application/json"]').textContent).map((known) => new Course(known));
      this.seconds = Math.max(...courses.map((course) => course.seconds));
      this.variants = [...place.querySelectorAll(".variant")].map((variant, i) => new Variant(variant, courses[i], this.seconds));
      this.events = courses.flatMap((course) => course.events()).sort((one, other) => one - other);
      this.at = courses[0].telling(Math.min(...courses.map((course) => course.seconds)));
      this.playing = false;
      this.calm = matchMedia("(prefers-reduced-motion: reduce)");
      const find = (selector) => place.querySelector(selector);
      this.button = find(".play");
      this.clock = find(".clock");
      this.range = find('input[type="range"]');
      this.range.max = this.seconds;
      this.speed = find("select");
      const rate = Math.max(...courses.map((course) => course.steps.length / course.seconds)) || 1;
      const usual = SPEEDS.reduce((best, speed) => (speed * rate <= VIEWED_A_SECOND ? speed : best));
      for (const speed of SPEEDS) this.speed.add(new Option(`${speed} ×`, speed, false, speed === usual));
      this.button.addEventListener("click", () => this.play(!this.playing));
      find(".back").addEventListener("click", () => this.step(-1));
      find(".next").addEventListener("click", () => this.step(1));
      this.range.addEventListener("input", () => this.go(Number(this.range.value)));
      document.addEventListener("keydown", (key) => this.press(key));
      addEventListener("beforeprint", () => this.beforePrint());
      this.show(this.at);
    }

    show(at) {
      for (const variant of this.variants) variant.show(at);
      const time = `${clock(at, this.seconds)} of ${clock(this.seconds, this.seconds)} s`;
      this.clock.textContent = time;
      this.clock.dataset.value = at;
      this.range.value = at;
      this.range.setAttribute("aria-valuetext", time);
    }

    move(at) {
      this.at = Math.max(0, Math.min(at, this.seconds));
      this.show(this.at);
    }

    go(at) {
      this.play(false);
      this.move(at);
    }

    step(direction) {
      const next = this.events.find((at) => at > this.at + CLOSE) ?? this.seconds;
      this.go(direction > 0 ? next : this.events.findLast((at) => at < this.at - CLOSE) ?? 0);
    }

    play(playing) {
      if (playing === this.playing) return;
      this.playing = playing;
      this.button.firstElementChild.textContent = playing ? "❚❚" : "▶";
      this.button.querySelector(".word").textContent = playing ? "Pause" : "Play";
      for (const variant of this.variants) variant.training.setAttribute("aria-live", playing ? "off" : "polite");
      if (!playing) return;
      if (this.at >= this.seconds) this.move(0);
      let last = performance.now(), drawn = 0, at = this.at;
      const frame = (now) => {
        if (!this.playing) return;
        at += Math.min(Math.max(now - last, 0), 250) / 1000 * Number(this.speed.value);
        last = now;
        // With reduced motion, only two frames a second.
        if (!this.calm.matches || now - drawn >= 500 || at >= this.seconds) {
          drawn = now;
          this.move(at);
        }
        if (at >= this.seconds) this.play(false); else requestAnimationFrame(frame);
      };
      requestAnimationFrame(frame);
    }

    press(key) {
      const on = document.activeElement, inside = this.place.contains(on);
      const anywhere = this.place.dataset.keys === "page" && (!on || on === document.body);
      if (!(inside || anywhere) || key.ctrlKey || key.metaKey || key.altKey || on.matches?.("select")) return;
      const keys = {
        " ": () => this.play(!this.playing),
        ArrowLeft: () => this.step(-1),
        ArrowRight: () => this.step(1),
        Home: () => this.go(0),
        End: () => this.go(this.seconds),
      };
      if (!(key.key in keys) || (key.key === " " && on.matches?.("button"))) return;
      key.preventDefault();
      keys[key.key]();
    }

    beforePrint() {
      this.play(false);
      this.place.querySelector(".still").textContent = `State ${clock(this.at, this.seconds)} s after the start.`;
    }
  }

  for (const place of document.querySelectorAll(".picture")) {
    if (place.dataset.drawn) continue;
    place.dataset.drawn = "yes";
    new Picture(place);
  }
}
