"""The lab's one plotly template, in the lab's palette, with the symbols and dashes that tell series apart."""

from labkit.palette import GRID, NEUTRAL, PALETTE

TEMPLATE = "lab"
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "x", "cross", "star")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid")
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'


def register() -> str:
    """Registers the lab's template with plotly, makes it the default, and returns its name."""
    import plotly.graph_objects as go
    import plotly.io as pio

    if TEMPLATE not in pio.templates:
        axis = {
            "gridcolor": GRID,
            "linecolor": NEUTRAL,
            "zerolinecolor": NEUTRAL,
            "zerolinewidth": 1,
            "ticks": "outside",
            "tickcolor": NEUTRAL,
            "ticklen": 4,
            "automargin": True,
            "title": {"standoff": 10},
        }
        pio.templates[TEMPLATE] = go.layout.Template(
            layout={
                "colorway": PALETTE,
                "font": {"family": FONT, "size": 14, "color": NEUTRAL},
                "paper_bgcolor": "rgba(0,0,0,0)",
                "plot_bgcolor": "rgba(0,0,0,0)",
                "title": {
                    "x": 0,
                    "xref": "container",
                    "xanchor": "left",
                    "y": 0.96,
                    "yanchor": "top",
                    "pad": {"l": 16},
                    "font": {"size": 18},
                    "subtitle": {"font": {"size": 13}},
                },
                "xaxis": axis | {"showgrid": False, "showline": True, "zeroline": False},
                "yaxis": axis | {"rangemode": "tozero", "showline": False, "ticks": ""},
                "legend": {
                    "orientation": "h",
                    "x": 0,
                    "xanchor": "left",
                    "y": -0.2,
                    "yanchor": "top",
                    "title": {"text": ""},
                },
                "margin": {"l": 64, "r": 24, "t": 88, "b": 64},
                "hovermode": "closest",
                "hoverlabel": {"font": {"family": FONT, "size": 13}},
                "bargap": 0.4,
            }
        )
    pio.templates.default = TEMPLATE
    return TEMPLATE
