"""Users' rewards and workflows in processes that can be killed: the side of these processes."""
