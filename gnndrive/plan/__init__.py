"""How much memory a loader uses for what, decided before the first read.

The loader (`loader/assembly.py`) asks for a plan with a `PlanRequest` and makes its runtime by it.
Only `drawn` reads the graph, through a sampler. A plan is for all ranks of one host. In the order
in which a loader uses them:

- `drawn`: `draw_batches` samples a few batches, whose sizes say how large a batch is.
- `request`: `PlanRequest` and the `requirements_of` it.
- `requirements`: `Requirements`, the sizes that a plan depends on, such as the largest batch.
- `choice`: `make_planner` chooses topology, samplers and queues; `least_memory`.
- `topology_choice`: `choose_topology` picks where the adjacency lives.
- `prediction`: `step_seconds`, what a batch for each rank costs with a plan.
- `computing`: what the processors take of a batch; `pace`: how fast those of this machine are.
- `planner`: `Planner` makes the plan and decides which attributes are memory-mapped.
- `plan`: `make_plan` makes a `Plan`, a list of `PlanItem`s.
- `items`: all uses of memory beside the feature buffer; add new ones there.
- `slot_split`: `split_slots` divides the feature buffer's memory among its tables.
- `second_buffer`: the feature buffer of a second live iterator.
- `packed`: the plan of a loader that replays a pack.

`loader.compare()` uses `sampled_trace`, `simulation` and `replay`, `strategy_costs` and
`layout_costs`, and makes a `comparison`. `gnndrive plan` also uses `sketch`, for a graph that is
not there, and `scale`, for several hosts.
"""
