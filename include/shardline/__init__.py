"""Run a language model over up to a billion documents, and lose or double none.

Read the rooms in the order a row walks through them: `corpus`, `shards`, `runners` and `worker`,
`results`, `report`. The modules beside this file are the ground that all rooms share.
"""

__version__ = "0.1.0"
