"""What NCCL itself says of a hang in which frd names no rank, or one that is alone in an op.

NCCL's RAS service counts the collectives that each rank of a communicator has launched, apart from
all recorders. Its word is evidence in a finding. It changes no cause, and nothing waits for it.

Entry points: `asker.SecondOpinions` asks agents; `comparison.opinion` says what an answer shows.
"""
