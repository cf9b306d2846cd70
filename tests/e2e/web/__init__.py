"""The web page in a real Chromium, driven by Playwright.

`browser` starts Chromium and follows a page: whatever its console, its network or its content
security policy complains of fails the test. `serving` is the service's HTTP application over a
scripted state. The fixtures are of package scope: Playwright's synchronous API keeps an event loop
in the thread, in which `asyncio.run` of other tests would fail. Tests in other folders and programs
(`bench/web.py`, `scripts/screenshots`) use `browser`, too.
"""
