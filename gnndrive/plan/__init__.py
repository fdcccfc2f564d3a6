"""How much memory a loader uses for what, decided before the first read.

The loader makes a `PlanRequest`, of which `choice` makes a `Planner`, and that a `Plan` for all
ranks of one host. No part of the loader is known here: a new use of memory is stated as an `Item`
by the part that has it. `loader.compare()` uses `sampled_trace`, `replay` and `strategy_costs`;
`gnndrive plan` also uses `sketch`, for a graph that is not there, and `scale`, for several hosts.
"""
