//! Charts as SVG: panels side by side that share their y-axis, and a legend below.

use std::fmt::Write as _;

use crate::print;

/// Colours that colour-blind readers can tell apart (Okabe and Ito).
const COLORS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

const PANEL: f64 = 480.0;
const HEIGHT: f64 = 372.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 20.0;
const BOTTOM: f64 = 62.0;
/// Height of a line of the legend.
const LINE: f64 = 20.0;

/// Largest number on an axis; larger ones are drawn there.
///
/// The span and the ticks of the axis stay finite.
const LARGEST: f64 = 1e307;

/// A point of a curve, or of the border of an area.
pub(crate) type Point = (f64, f64);

/// Curve with the area around it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Curve {
    pub(crate) line: Vec<Point>,
    /// Lower border of the area; empty without an area.
    pub(crate) low: Vec<Point>,
    pub(crate) high: Vec<Point>,
    /// Single points, such as evaluations.
    pub(crate) dots: Vec<Point>,
}

impl Curve {
    fn points(&self) -> impl Iterator<Item = &Point> {
        [&self.line, &self.low, &self.high, &self.dots].into_iter().flatten()
    }
}

/// Range of an axis, with the distance of its ticks.
struct Axis {
    from: f64,
    to: f64,
    step: f64,
}

impl Axis {
    /// Covers all values with about five ticks at round numbers.
    fn over(values: impl Iterator<Item = f64>) -> Self {
        let (from, to) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(from, to), x| (from.min(x), to.max(x)));
        // Without a value.
        let (from, to) = if from <= to { (from, to) } else { (0.0, 1.0) };
        let [from, to] = [from, to].map(|x| x.clamp(-LARGEST, LARGEST));
        let largest = from.abs().max(to.abs());
        // Numbers that are closer have no round ticks between them.
        let (from, to) = if to - from > 1e-9 * largest && to - from > 1e-300 {
            (from, to)
        } else {
            let margin = (largest / 1000.0).max(0.5);
            (from - margin, from + margin)
        };
        let rough = (to - from) / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power).into_iter().find(|step| *step >= rough).unwrap_or(rough);
        Self { from: (from / step).floor() * step, to: (to / step).ceil() * step, step }
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        let n = ((self.to - self.from) / self.step).round() as usize;
        (0..=n).map(|i| self.from + i as f64 * self.step)
    }

    /// Maps a value to the axis, from 0 to 1.
    fn share(&self, value: f64) -> f64 {
        (value.clamp(-LARGEST, LARGEST) - self.from) / (self.to - self.from)
    }
}

/// Draws a panel for each x-axis, with the curves of that panel.
///
/// A name belongs to the curves of the same index in all panels.
pub(crate) fn svg(y_label: &str, x_labels: &[&str], curves: &[Vec<Curve>], names: &[String]) -> String {
    let (width, height) = (PANEL * x_labels.len() as f64, HEIGHT + LINE * names.len() as f64 + 10.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let y = Axis::over(curves.iter().flatten().flat_map(Curve::points).map(|(_, y)| *y));
    for (i, (label, curves)) in x_labels.iter().zip(curves).enumerate() {
        panel(&mut svg, PANEL * i as f64, label, y_label, &y, curves);
    }
    for (i, name) in names.iter().enumerate() {
        let (at, color) = (HEIGHT + LINE * i as f64, color(i));
        let _ = writeln!(svg, "<path d=\"M{LEFT} {at}h24\" stroke=\"{color}\" stroke-width=\"3\"{}/>", dashes(i));
        let _ = writeln!(svg, "<text x=\"{}\" y=\"{}\">{}</text>", LEFT + 32.0, at + 4.0, escaped(name));
    }
    svg + "</svg>\n"
}

fn color(i: usize) -> &'static str {
    COLORS[i % COLORS.len()]
}

/// Dashes of the curves after those that have a colour of their own.
fn dashes(i: usize) -> String {
    if i < COLORS.len() { String::new() } else { format!(" stroke-dasharray=\"{} 3\"", 3 * (i / COLORS.len())) }
}

fn panel(svg: &mut String, left: f64, x_label: &str, y_label: &str, y: &Axis, curves: &[Curve]) {
    let x = Axis::over(curves.iter().flat_map(Curve::points).map(|(x, _)| *x));
    let (from, to, bottom) = (left + LEFT, left + PANEL - RIGHT, HEIGHT - BOTTOM);
    let place = |point: &Point| (from + (to - from) * x.share(point.0), bottom - (bottom - TOP) * y.share(point.1));
    let list = |points: &mut dyn Iterator<Item = &Point>| -> String {
        points.map(place).map(|(x, y)| format!("{x:.1},{y:.1} ")).collect()
    };
    for tick in x.ticks() {
        let (at, _) = place(&(tick, y.from));
        let _ = writeln!(svg, "<path d=\"M{at:.1} {TOP}V{bottom}\" stroke=\"#e5e5e5\"/>");
        let _ = writeln!(svg, "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>", bottom + 17.0, short(tick));
    }
    for tick in y.ticks() {
        let (_, at) = place(&(x.from, tick));
        let _ = writeln!(svg, "<path d=\"M{from} {at:.1}H{to}\" stroke=\"#e5e5e5\"/>");
        let _ = writeln!(svg, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>", from - 6.0, at + 4.0, short(tick));
    }
    let _ = writeln!(svg, "<path d=\"M{from} {TOP}V{bottom}H{to}\" fill=\"none\" stroke=\"black\"/>");
    let _ = writeln!(svg, "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{x_label}</text>", (from + to) / 2.0, bottom + 38.0);
    let (middle, at) = ((TOP + bottom) / 2.0, left + 16.0);
    let _ = writeln!(
        svg,
        "<text x=\"{at}\" y=\"{middle}\" text-anchor=\"middle\" transform=\"rotate(-90 {at} {middle})\">{y_label}</text>"
    );
    for (i, curve) in curves.iter().enumerate() {
        let (color, dashes) = (color(i), dashes(i));
        if !curve.low.is_empty() {
            let area = list(&mut curve.low.iter().chain(curve.high.iter().rev()));
            let _ = writeln!(svg, "<polygon points=\"{area}\" fill=\"{color}\" opacity=\"0.2\"/>");
        }
        let line = list(&mut curve.line.iter());
        let _ = writeln!(svg, "<polyline points=\"{line}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.5\"{dashes}/>");
        for (x, y) in curve.dots.iter().map(place) {
            let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\" fill=\"{color}\"/>");
        }
    }
}

/// Formats the number of a tick in few characters.
pub(crate) fn short(value: f64) -> String {
    let (value, unit) = match value.abs() {
        x if x >= 1e15 => return format!("{value:.2e}"),
        x if x >= 1e9 => (value / 1e9, " G"),
        x if x >= 1e6 => (value / 1e6, " M"),
        x if x >= 1e3 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    // A sum of steps ends in 0.30000000000000004.
    format!("{}{unit}", (value * 1e6).round() / 1e6)
}

fn escaped(text: &str) -> String {
    print::shown(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_ticks_and_cover_their_values() {
        for (values, ticks) in [
            (vec![9.3, 487.0], vec!["0", "100", "200", "300", "400", "500"]),
            (vec![0.0, 1.2e6], vec!["0", "500 k", "1 M", "1.5 M"]),
            (vec![-0.31, 0.08], vec!["-0.4", "-0.3", "-0.2", "-0.1", "0", "0.1"]),
            (vec![-200.0, -200.0], vec!["-200.6", "-200.4", "-200.2", "-200", "-199.8", "-199.6", "-199.4"]),
            (vec![-f64::MAX, f64::MAX], vec!["-1.00e307", "-5.00e306", "0", "5.00e306", "1.00e307"]),
            (vec![], vec!["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        ] {
            let axis = Axis::over(values.into_iter());
            assert_eq!(axis.ticks().map(short).collect::<Vec<_>>(), ticks);
        }
    }

    #[test]
    fn every_finite_number_has_a_place_on_its_axis() {
        let numbers = [0.0, 5e-324, -1e-308, 1.0, 1.0 + f64::EPSILON, -1e16, 1e154, -1e300, 1.7e308, f64::MAX, f64::MIN];
        for (a, b) in numbers.iter().flat_map(|a| numbers.iter().map(move |b| (*a, *b))) {
            let axis = Axis::over([a, b].into_iter());
            let shares = [a, b].map(|x| axis.share(x));
            assert!(shares.iter().all(|share| (-0.001..=1.001).contains(share)), "{a} {b}: {shares:?}");
            assert!((2..20).contains(&axis.ticks().count()) && axis.ticks().all(f64::is_finite), "{a} {b}");
            assert!(axis.ticks().all(|tick| short(tick).len() < 16), "{a} {b}");
        }
    }

    #[test]
    fn names_that_xml_rejects_are_shown_by_their_codes() {
        assert_eq!(escaped("a\x1b]0;t\x07\0&\u{ffff}\u{202e}"), r"a\u001b]0;t\u0007\u0000&amp;\uffff\u202e");
    }

    #[test]
    fn a_picture_has_a_curve_in_each_panel_and_escaped_names() {
        let curve = Curve { line: vec![(0.0, 0.0), (1000.0, 5.0)], dots: vec![(1000.0, 5.0)], ..Curve::default() };
        let svg = svg("return", &["env steps", "seconds"], &[vec![curve.clone()], vec![curve]], &["a<b & c".into()]);
        let count = |text: &str| svg.matches(text).count();
        assert_eq!((count("<polyline"), count("<polygon"), count("<circle"), count("a&lt;b &amp; c")), (2, 0, 2, 1), "{svg}");
        // (1000, 5) is the top right corner of both panels.
        assert!(svg.contains("70.0,310.0 460.0,20.0 \"") && svg.contains("550.0,310.0 940.0,20.0 \""), "{svg}");
    }
}
