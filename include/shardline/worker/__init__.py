"""The program that runs one attempt on one shard; it imports no Airflow.

Read: run (an attempt), drive (its engines), window and feed, commit, journal, ahead.
"""
