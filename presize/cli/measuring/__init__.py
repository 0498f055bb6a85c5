"""The commands that measure: what loading costs, what holds a training back, what a change would bring."""
