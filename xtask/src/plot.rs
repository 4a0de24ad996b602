//! Line charts as SVG, panels side by side.

use std::fmt::Write as _;

const PANEL: f64 = 340.0;
const MARGIN: f64 = 48.0;
const SIZE: f64 = PANEL - 2.0 * MARGIN;

/// Axis of a panel.
pub(crate) struct Axis {
    pub(crate) label: &'static str,
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) log: bool,
    pub(crate) ticks: Vec<(f64, String)>,
}

impl Axis {
    /// Returns a linear axis from 0 to `to` with five ticks.
    pub(crate) fn linear(label: &'static str, to: f64) -> Self {
        let ticks = (0..=4).map(|i| f64::from(i) * to / 4.0).map(|at| (at, short(at))).collect();
        Self { label, from: 0.0, to, log: false, ticks }
    }

    /// Returns a logarithmic axis with a tick at each power of ten.
    pub(crate) fn log(label: &'static str, from: f64, to: f64) -> Self {
        let powers = (from.log10().ceil() as i32..=to.log10().floor() as i32).map(|i| 10f64.powi(i));
        Self { label, from, to, log: true, ticks: powers.map(|at| (at, short(at))).collect() }
    }

    /// Maps a value to the axis, from 0 to 1.
    fn share(&self, value: f64) -> f64 {
        let value = value.clamp(self.from, self.to);
        if self.log { (value / self.from).ln() / (self.to / self.from).ln() } else { (value - self.from) / (self.to - self.from) }
    }
}

/// Chart of one or more panels.
pub(crate) struct Chart {
    svg: String,
    panels: usize,
}

/// Panel of a chart, ready for curves.
pub(crate) struct Panel<'a> {
    chart: &'a mut Chart,
    left: f64,
    x: Axis,
    y: Axis,
    labels: usize,
}

impl Chart {
    pub(crate) fn new() -> Self {
        Self { svg: String::new(), panels: 0 }
    }

    /// Draws a new panel to the right of the others.
    pub(crate) fn panel(&mut self, x: Axis, y: Axis) -> Panel<'_> {
        let left = self.panels as f64 * PANEL;
        self.panels += 1;
        let (start, bottom) = (left + MARGIN, MARGIN + SIZE);
        let svg = &mut self.svg;
        let _ = writeln!(svg, "<path d=\"M{start} {MARGIN}V{bottom}h{SIZE}\" fill=\"none\" stroke=\"black\"/>");
        let _ =
            writeln!(svg, "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>", left + PANEL / 2.0, bottom + 34.0, x.label);
        let _ = writeln!(svg, "<text x=\"{}\" y=\"{}\">{}</text>", left + 6.0, MARGIN - 26.0, y.label);
        let panel = Panel { chart: self, left, x, y, labels: 0 };
        for (at, text) in &panel.x.ticks {
            let x = panel.place(*at, panel.y.from).0;
            let _ = writeln!(panel.chart.svg, "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{text}</text>", bottom + 15.0);
        }
        for (at, text) in &panel.y.ticks {
            let y = panel.place(panel.x.from, *at).1;
            let _ =
                writeln!(panel.chart.svg, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>", start - 4.0, y + 4.0);
        }
        panel
    }

    /// Returns the finished picture.
    pub(crate) fn finish(self) -> String {
        let width = self.panels as f64 * PANEL;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {PANEL}\" font-family=\"sans-serif\" font-size=\"11\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{}</svg>\n",
            self.svg
        )
    }
}

impl Panel<'_> {
    fn place(&self, x: f64, y: f64) -> (f64, f64) {
        (self.left + MARGIN + SIZE * self.x.share(x), MARGIN + SIZE * (1.0 - self.y.share(y)))
    }

    fn points(&self, points: impl Iterator<Item = (f64, f64)>) -> String {
        points.map(|(x, y)| self.place(x, y)).map(|(x, y)| format!("{x:.1},{y:.1} ")).collect()
    }

    /// Adds a curve.
    pub(crate) fn line(&mut self, points: impl Iterator<Item = (f64, f64)>, color: &str) {
        let points = self.points(points);
        let _ = writeln!(self.chart.svg, "<polyline points=\"{points}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.5\"/>");
    }

    /// Fills the area between two curves.
    pub(crate) fn band(&mut self, low: &[(f64, f64)], high: &[(f64, f64)], color: &str) {
        let points = self.points(low.iter().chain(high.iter().rev()).copied());
        let _ = writeln!(self.chart.svg, "<polygon points=\"{points}\" fill=\"{color}\" opacity=\"0.2\"/>");
    }

    /// Adds an entry to the legend.
    pub(crate) fn label(&mut self, text: &str, color: &str) {
        let (x, y) = (self.left + MARGIN + 12.0, MARGIN + 14.0 * self.labels as f64);
        self.labels += 1;
        let _ = writeln!(self.chart.svg, "<text x=\"{x}\" y=\"{y}\" fill=\"{color}\">{text}</text>");
    }
}

/// Formats a number in few characters.
pub(crate) fn short(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{} M", v / 1e6),
        v if v >= 1e3 => format!("{} k", v / 1e3),
        v => v.to_string(),
    }
}
