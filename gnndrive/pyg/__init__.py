"""gnndrive behind PyTorch Geometric's own interfaces, and PyG's data types made from samples.

What the pipeline uses, in that order:

- `subgraph_sampler`: `SubgraphSampler` samples in PyG's own form.
- `attributes`: `Attributes` reads a batch's rows that no table of the feature buffer holds.
- `labels`: `Labels` keeps labels in memory in a narrow dtype.
- `collate`: `Collate` joins a sample, its features and its attributes into a Data or HeteroData.

What users of PyG use without gnndrive's loaders:

- `sampler`: `NeighborSampler`, a PyG `BaseSampler`, for graphs in memory and in stores.
- `stores`: a store as PyG's FeatureStore and GraphStore.
- `bidirectional`: `BidirectionalNeighborSampler`, which samples along edges and against them.
- `conversions`: helpers of these modules.
"""
