"use strict";
/* Draws the page's charts: what all of them share, and the colours of the reader's scheme. */
(() => {
  const text = document.getElementById("charts").textContent;
  const places = document.querySelectorAll(".chart");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const touched = matchMedia("(pointer: coarse)").matches;
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // How traces and axes of a kind look.
  const kinds = () => ({
    mark: {type: "scatter", mode: "markers", hoverinfo: "text",
      marker: {color: css("--ink"), symbol: "diamond", size: 8}},
    square: {type: "scatter", mode: "markers"},
    scale: {symbol: "square", size: 16, colorscale: "Viridis", showscale: true},
    span: {type: "bar", orientation: "h", hoverinfo: "text",
      textposition: "inside", insidetextanchor: "start", constraintext: "none"},
    rows: {type: "category", categoryorder: "array", fixedrange: true, dtick: 1, showgrid: false,
      tickfont: {size: 11}},
  });
  // A colour in the data is the name of one of the page's.
  const styled = (key, value) => {
    if (key.endsWith("color") && typeof value === "string" && value.startsWith("--")) return css(value);
    return value?.kind ? {...kinds()[value.kind], ...value} : value;
  };

  const axis = own => ({
    automargin: true, color: css("--soft"), gridcolor: css("--rule"), linecolor: css("--soft"),
    zerolinecolor: css("--rule"), hoverformat: ".4~g", ...own,
    title: {standoff: 8, ...own.title},
  });
  const layout = chart => {
    const own = Object.entries(chart.layout).map(
      ([key, value]) => [key, /^[xy]axis/.test(key) ? axis(value) : value]);
    return {
      // Where a screen is narrow, the legend takes a line for each of its entries.
      height: chart.height + (innerWidth > 600 ? 0
        : 18 * chart.data.filter(trace => trace.showlegend !== false).length),
      margin: {l: 8, r: 8, t: 34, b: 8},
      paper_bgcolor: css("--paper"), plot_bgcolor: css("--paper"),
      font: {family: "system-ui, 'DejaVu Sans', sans-serif", size: 12, color: css("--soft")},
      hoverlabel: {bgcolor: css("--panel"), bordercolor: css("--rule"),
        font: {color: css("--ink"), size: 12}, align: "left", namelength: -1},
      legend: {orientation: "h", yref: "container", y: 0, yanchor: "bottom", x: 0,
        font: {size: 12}},
      modebar: {bgcolor: "rgba(0,0,0,0)", color: css("--soft"), activecolor: css("--ink")},
      // A finger scrolls the page; a mouse marks what to zoom into.
      dragmode: touched ? false : "zoom",
      ...Object.fromEntries(own),
    };
  };
  const options = chart => ({
    responsive: true, displaylogo: false, displayModeBar: true, plotlyServerURL: "",
    modeBarButtonsToRemove: [
      "sendChartToCloud", "select2d", "lasso2d", "zoomIn2d", "zoomOut2d", "autoScale2d"],
    modeBarButtonsToAdd: ["downloadJson"],
    toImageButtonOptions: {format: "png", scale: 2,
      filename: `${document.title} ${chart.title}`.replace(/[^A-Za-z0-9._-]+/g, "-")},
  });
  const draw = () => {
    const charts = JSON.parse(text, styled);
    return Promise.all([...places].map((place, index) =>
      Plotly.react(place, charts[index].data, layout(charts[index]), options(charts[index]))));
  };
  dark.addEventListener("change", draw);
  draw().then(() => document.body.dataset.drawn = "yes");
})();
