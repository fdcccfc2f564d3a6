"""How much memory a loader uses for what, decided before the first read.

The loader (`loader/assembly.py`) asks for a plan with a `PlanRequest` and makes its runtime by it.
Only `drawn` reads the graph, through a sampler. A plan is for all ranks of one host. In the order
in which a loader uses them:

- `drawn`: `draw_batches` samples a few batches, whose sizes say how large a batch is.
- `request`: `PlanRequest`, and `planner_of`, which names the parts of a loader.
- `choice`: `make_planner` chooses topology, samplers and queues.
- `topology_choice`: `Topologies` says where the adjacency may live.
- `costs`: what a batch for each rank costs with a plan, by part, and how the parts combine;
  `pace`: how fast this machine computes.
- `planner`: `Planner` adds up the `Item`s that each part of the loader states, divides what they
  leave, and decides which attributes are memory-mapped. It knows no part: a new use of memory is
  stated by the part that has it.
- `plan`: `Plan`, what it makes.
- `slots`: the feature buffer in which each row has a slot; `split_slots` divides it among tables.
- `second_buffer`: the feature buffer of a second live iterator.

`loader.compare()` uses `sampled_trace`, `replay` and `strategy_costs`. `gnndrive plan` also uses
`sketch`, for a graph that is not there, and `scale`, for several hosts.
"""
