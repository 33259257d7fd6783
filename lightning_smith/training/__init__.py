"""Recipes, advantages, checkpoints, segments and export, whatever computes the gradients."""
