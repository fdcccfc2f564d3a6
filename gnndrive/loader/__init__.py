"""What the user holds: loaders whose data may be a store, and what runs behind them."""
