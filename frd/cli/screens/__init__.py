"""What commands print: tables, panels and pages. They draw values that they receive."""
