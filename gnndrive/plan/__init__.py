"""How much memory a loader uses for what, decided before the first read.

The loader (`loader/assembly.py`) asks for a plan with a `PlanRequest` and makes its runtime by it.
No module here reads the graph or allocates anything. In the order in which a loader uses them:

- `request`: `make_planner` turns a `PlanRequest` into a `Planner`, which makes the plan.
- `requirements`: `Requirements`, the sizes that a plan depends on, such as the largest batch.
- `topology_choice`: `choose_topology` picks where the adjacency lives.
- `plan`: `make_plan` makes a `Plan`, a list of `PlanItem`s; add new uses of memory there.
- `slot_split`: `split_slots` divides the feature buffer's memory among its tables.
"""
