"""The page of results: tables, pictures, and the measurements behind them."""
