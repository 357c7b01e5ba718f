"""The real services without a model: tokens and weights are hashes of what they were made from.

Only the engine inside the explorer and the learner inside the trainer's rank are replaced. Tokens
follow from the weights, the prompt and the seed; weights follow from the weights before and every
row trained on. So two runs end in the same weights exactly when they trained the same rows in the
same order, each made with the same weights.
"""
