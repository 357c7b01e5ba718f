"""What is served: which weights, by which engines, and to whom."""



