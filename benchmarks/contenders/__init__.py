"""One adapter a rival, each in its best idiom, imported only when its name is asked for.

``QUESTION_contenders(setting)`` of a module yields `harness.Contender` objects that are built and
open. It raises `harness.NotRun`, or `ImportError`, where the rival cannot be had.
"""
