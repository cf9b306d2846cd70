"""Requests to agents for dumps, stacks, waits and the status of NCCL, and their answers.

Entry points: `inquiries.Inquiries` asks on the streams of one cell; `inquiry.Inquiry` matches one
request with its answers.
"""
