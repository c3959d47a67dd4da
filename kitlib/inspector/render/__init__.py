"""How a view is drawn: `model` is what a view says, `states` how each saying looks, and the two writers print the
same model.

view function ──> ViewModel ──┬── rich_writer   terminal, log, text/plain
                              └── html_writer   notebook, saved page
"""
