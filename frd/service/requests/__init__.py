"""Requests to agents for dumps, stacks and waits, and their answers.

Entry points: `inquiries.Inquiries` asks on the streams of one cell; `inquiry.Inquiry` matches one
request with its answers.
"""
