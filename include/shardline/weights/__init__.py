"""A model's files on the machine that runs it: found in the plan, fetched once per node."""
