"""What commands print: tables, panels and pages. They draw values that they receive.

`finding_panel` draws one finding, `verdict` the first screen of `frd analyze`,
`html_page` the same as a page, `job_tables` a job in `frd status`, `records` lines for
pipes, and the last lines of `frd findings`; `live` redraws any of them every second.
"""
