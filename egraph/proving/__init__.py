"""Proofs of rules for every size: terms are computed on symbols, case by case."""
