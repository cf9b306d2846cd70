"""The picture of a finding: what its ranks did around the incident.

Entry points: `timelines.Timelines`, which answers for any finding and keeps what would be gone when
the job goes on; `form.timeline_json` and `form.perfetto_bytes`, its forms.

`timeline.Timeline` is the value between them, which `timelines` makes of a finding and what the
engine remembers of its attempt. The engine itself knows no picture.
"""
