"""Stack dumps as text: which frames are the user's (`text`), what the rank does (`places`)."""
