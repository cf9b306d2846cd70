"""Evidence that no recorder has: questions to ranks, and what their answers mean.

`Engine.advance` returns questions, the service asks them, and `Engine.answer` takes each answer
like any other input: the journal holds it, and a replay decides by it.

Entry points: `questions` says on which occasion which ranks are asked, `answers` turns sightings
into proven waits and evidence for findings, `nccl` compares what NCCL counts.
"""
