"""Loader processes and a training step, simulated: a timeline, and a prediction for other numbers of workers. Pure.

pipeline: what is simulated. events: the simulation. timeline: what it came to.
"""

from presize.measure.simulate.events import fewest_workers, simulate, sweep
from presize.measure.simulate.pipeline import MOST_WORKERS, NOTHING, Pipeline, Times
from presize.measure.simulate.timeline import Load, SimulatedStep, Timeline

__all__ = [
    "MOST_WORKERS",
    "NOTHING",
    "Load",
    "Pipeline",
    "SimulatedStep",
    "Timeline",
    "Times",
    "fewest_workers",
    "simulate",
    "sweep",
]
