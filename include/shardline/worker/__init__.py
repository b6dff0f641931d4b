"""The program that runs one shard: keeps an engine full, survives everything, and can prove it.

Read it in this order: `run` (an attempt from start to end), `feed` (the window), `commit` (the
checkpoint), `isolation` (which document kills engines), `answers` (what one request's end is).
"""
