//! Line plots as self-contained SVG: axes, a legend, no scripts, no fonts of our own.

/// A line.
#[derive(Debug)]
pub struct Series<'a> {
    /// For the legend.
    pub name: &'a str,
    /// Points from left to right.
    pub points: Vec<(f64, f64)>,
}

/// A plot of several lines over common axes, which start at 0.
#[derive(Debug)]
pub struct Plot<'a> {
    /// Above the plot.
    pub title: &'a str,
    /// Below the horizontal axis.
    pub x: &'a str,
    /// Beside the vertical axis.
    pub y: &'a str,
    /// The lines.
    pub series: Vec<Series<'a>>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 48.0;
/// Colours that stay apart for colour-blind readers and in print.
const COLOURS: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#b2a800",
];

/// The next of 1, 2, 5 times a power of ten that is at least a fifth of `largest`.
fn step(largest: f64) -> f64 {
    let rough = (largest / 5.0).max(f64::MIN_POSITIVE);
    let power = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|m| m * power)
        .find(|s| *s >= rough)
        .unwrap_or(10.0 * power)
}

/// Text that is no markup.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

impl Plot<'_> {
    /// The SVG document.
    pub fn render(&self) -> String {
        let points = || {
            self.series
                .iter()
                .flat_map(|s| &s.points)
                .filter(|(x, y)| x.is_finite() && y.is_finite())
        };
        let largest = |of: fn(&(f64, f64)) -> f64| points().map(of).fold(0.0, f64::max).max(1e-9);
        let (x_max, y_max) = (largest(|p| p.0), largest(|p| p.1));
        let x_at = |x: f64| LEFT + x / x_max * (WIDTH - LEFT - RIGHT);
        let y_at = |y: f64| HEIGHT - BOTTOM - y / y_max * (HEIGHT - TOP - BOTTOM);
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
             <text x=\"{LEFT}\" y=\"24\" font-size=\"15\">{}</text>\n",
            escaped(self.title)
        );
        let ticks = |largest: f64| {
            let step = step(largest);
            (0..=(largest / step) as u32).map(move |i| f64::from(i) * step)
        };
        for tick in ticks(y_max) {
            let y = y_at(tick);
            out += &format!(
                "<path d=\"M{LEFT} {y:.1}H{}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{tick}</text>\n",
                WIDTH - RIGHT,
                LEFT - 6.0,
                y + 4.0
            );
        }
        for tick in ticks(x_max) {
            out += &format!(
                "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{tick}</text>\n",
                x_at(tick),
                HEIGHT - BOTTOM + 16.0
            );
        }
        for (i, series) in self.series.iter().enumerate() {
            let colour = COLOURS[i % COLOURS.len()];
            let finite = series
                .points
                .iter()
                .filter(|(x, y)| x.is_finite() && y.is_finite());
            let line: Vec<String> = finite
                .map(|(x, y)| format!("{:.1},{:.1}", x_at(*x), y_at(*y)))
                .collect();
            out += &format!(
                "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" points=\"{}\"/>\n\
                 <text x=\"{}\" y=\"{}\" text-anchor=\"end\" fill=\"{colour}\">{}</text>\n",
                line.join(" "),
                WIDTH - RIGHT,
                TOP + 14.0 * i as f64,
                escaped(series.name)
            );
        }
        out += &format!(
            "<path d=\"M{LEFT} {TOP}V{}H{}\" fill=\"none\" stroke=\"black\"/>\n\
             <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n\
             <text transform=\"translate(16 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n</svg>\n",
            HEIGHT - BOTTOM,
            WIDTH - RIGHT,
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 10.0,
            escaped(self.x),
            (TOP + HEIGHT - BOTTOM) / 2.0,
            escaped(self.y)
        );
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_out_and_nan_is_left_out() {
        let series = vec![Series {
            name: "a<b",
            points: vec![(0.0, 1.0), (1.0, f64::NAN), (2.0, 3.0)],
        }];
        let text = Plot {
            title: "t & u",
            x: "x",
            y: "y",
            series,
        }
        .render();
        assert!(text.contains("a&lt;b") && text.contains("t &amp; u") && !text.contains("NaN"));
    }

    #[test]
    fn steps_are_round() {
        assert_eq!(step(8.3), 2.0);
        assert_eq!(step(776.0), 200.0);
    }
}
