//! `rl plot`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use crate::cli::show::chart::{self, Curve, Point};
use crate::cli::show::recorded::{Recorded, settings};
use crate::file::Draft;
use crate::{Config, Error, print};

/// Points of a curve.
const POINTS: usize = 300;

/// Column of the returns.
pub(crate) const RETURN: &str = "rollout/ep_rew_mean";
/// X-axes: column and label.
const X: [(&str, &str); 2] = [("time/total_timesteps", "env steps"), ("time/time_elapsed", "seconds of training")];

#[derive(Args)]
#[command(after_help = "\
Examples:
  rl plot runs/cartpole-ppo-seed0-1
  rl plot runs/cartpole-ppo-seed* --out seeds.svg

Curves are mean returns of the last 100 episodes, over env steps and over seconds; dots are evaluations. Runs that differ in their
seed only share a curve: their mean, in an area of one standard deviation to either side, as far as all of them go.")]
pub(crate) struct PlotArgs {
    /// Directories of runs
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// File to write [default: RUN/plot.svg, or plot.svg for several runs]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Runs that share a curve.
struct Group {
    name: String,
    /// Settings of the first run; `None` if they cannot be read.
    config: Option<Config>,
    runs: Vec<Recorded>,
}

pub(crate) fn run(args: &PlotArgs, json: bool) -> Result<ExitCode, Error> {
    let mut groups: Vec<Group> = Vec::new();
    for run in &args.runs {
        let recorded = Recorded::open(run)?;
        if recorded.curve(X[0].0, RETURN).is_empty() {
            return Err(Error::RunDir {
                path: run.clone(),
                why: "no episode has ended so far: there is no return to plot".into(),
            });
        }
        for (x, label) in &X[1..] {
            if recorded.curve(x, RETURN).is_empty() {
                let run = run.display();
                print::err(&format!("warning: {run}: metrics.csv has no return with a number in {x}: no curve over {label}"));
            }
        }
        let config = settings(run).ok();
        let same = |group: &Group| group.config.as_ref().zip(config.as_ref()).is_some_and(|(a, b)| a.differs_by_seed(b));
        match groups.iter_mut().find(|group| same(group)) {
            Some(group) => group.runs.push(recorded),
            None => groups.push(Group { name: name(run), config, runs: vec![recorded] }),
        }
    }
    let (file, draft) = match (&args.out, &args.runs[..]) {
        (Some(out), _) => (out.clone(), Draft::create(out)?),
        (None, runs) => {
            let file = if let [run] = runs { run.join("plot.svg") } else { "plot.svg".into() };
            (file.clone(), Draft::own(&file)?)
        }
    };
    let panels = X.iter().map(|(x, label)| (*label, groups.iter().map(|group| curve(&group.runs, x)).collect::<Vec<Curve>>()));
    let (labels, curves): (Vec<&str>, Vec<_>) =
        panels.filter(|(_, curves)| curves.iter().any(|curve| !curve.line.is_empty())).unzip();
    let names: Vec<String> = groups.iter().map(Group::label).collect();
    let (n, file) = (args.runs.len(), file.display().to_string());
    draft.publish(chart::svg("mean return", &labels, &curves, &names).as_bytes())?;
    print::out(&match json {
        true => json!({"event": "plot", "file": file, "runs": n, "curves": names}).to_string(),
        false => format!("{file}: {} of {n} {}", plural(names.len(), "curve"), if n == 1 { "run" } else { "runs" }),
    });
    Ok(ExitCode::SUCCESS)
}

fn plural(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

impl Group {
    fn label(&self) -> String {
        match self.runs.len() {
            1 => self.name.clone(),
            n => format!("{} and {}: mean and standard deviation", self.name, plural(n - 1, "other seed")),
        }
    }
}

/// Returns the name of a run's directory.
fn name(run: &Path) -> String {
    let run = std::path::absolute(run).unwrap_or_else(|_| run.into());
    run.file_name().map_or_else(|| run.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// Returns the curve of runs over a column; empty if none has a return there.
pub(crate) fn curve(runs: &[Recorded], x: &str) -> Curve {
    let mut lines: Vec<Vec<Point>> = runs.iter().map(|run| run.curve(x, RETURN)).collect();
    lines.retain(|line| !line.is_empty());
    if lines.is_empty() {
        return Curve::default();
    }
    let dots = runs.iter().flat_map(|run| run.curve(x, "eval/mean_reward")).collect();
    let first = lines.iter().filter_map(|line| line.first()).map(|(x, _)| *x).fold(f64::NEG_INFINITY, f64::max);
    let last = lines.iter().filter_map(|line| line.last()).map(|(x, _)| *x).fold(f64::INFINITY, f64::min).max(first);
    let mut curve = Curve { dots, ..Curve::default() };
    for i in 0..POINTS {
        let x = between(first, last, i as f64 / (POINTS - 1) as f64);
        let values: Vec<f64> = lines.iter().map(|line| at(line, x)).collect();
        let (mean, deviation) = spread(&values);
        curve.line.push((x, mean));
        if values.len() > 1 {
            curve.low.push((x, (mean - deviation).max(f64::MIN)));
            curve.high.push((x, (mean + deviation).min(f64::MAX)));
        }
    }
    curve
}

/// Interpolates a line between its points.
fn at(line: &[Point], x: f64) -> f64 {
    let next = line.partition_point(|point| point.0 < x).min(line.len() - 1);
    let ((x0, y0), (x1, y1)) = (line[next.saturating_sub(1)], line[next]);
    let share = if x1 > x0 { ((x / 2.0 - x0 / 2.0) / (x1 / 2.0 - x0 / 2.0)).min(1.0) } else { 1.0 };
    between(y0, y1, share)
}

/// Interpolates between two numbers, whose distance may be infinite.
fn between(a: f64, b: f64, share: f64) -> f64 {
    if a == b { a } else { a * (1.0 - share) + b * share }
}

/// Returns mean and standard deviation, whose sum and squares may be infinite.
fn spread(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let most = values.iter().fold(0.0f64, |most, value| most.max(value.abs()));
    let unit = if most > 1e100 { most } else { 1.0 };
    let mean = values.iter().map(|value| value / unit).sum::<f64>() / n;
    let squares = values.iter().map(|value| (value / unit - mean).powi(2)).sum::<f64>() / n;
    (mean * unit, squares.sqrt() * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_interpolated_and_end_with_their_points() {
        let line = [(1.0, 10.0), (3.0, 30.0), (4.0, 0.0)];
        assert_eq!([0.0, 1.0, 2.0, 3.0, 3.5, 4.0, 9.0].map(|x| at(&line, x)), [10.0, 10.0, 20.0, 30.0, 15.0, 0.0, 0.0]);
        assert_eq!([0.0, 1.0, 2.0].map(|x| at(&[(1.0, 7.0)], x)), [7.0; 3]);
    }

    #[test]
    fn a_curve_is_the_mean_where_all_runs_are_with_one_standard_deviation_to_either_side() {
        let dir = tempfile::tempdir().unwrap();
        let run = |rows: &str| {
            let rows = format!("time/total_timesteps,rollout/ep_rew_mean,eval/mean_reward\n{rows}");
            std::fs::write(dir.path().join("metrics.csv"), rows).unwrap();
            Recorded::open(dir.path()).unwrap()
        };
        let runs = [run("0,,\n10,1,\n20,2,5\n"), run("0,3,\n30,3,\n")];
        let curve = curve(&runs, X[0].0);
        // Both are at 10 (1 and 3) and up to 20 (2 and 3); the deviation of two numbers is half of their distance.
        assert_eq!((curve.line[0], curve.low[0], curve.high[0]), ((10.0, 2.0), (10.0, 1.0), (10.0, 3.0)));
        let last = POINTS - 1;
        assert_eq!((curve.line[last], curve.low[last], curve.high[last]), ((20.0, 2.5), (20.0, 2.0), (20.0, 3.0)));
        assert_eq!((curve.line.len(), curve.dots), (POINTS, vec![(20.0, 5.0)]));
    }

    #[test]
    fn a_column_without_numbers_has_no_curve_and_huge_numbers_have_a_finite_one() {
        let dir = tempfile::tempdir().unwrap();
        let run = |rows: &str| {
            std::fs::write(dir.path().join("metrics.csv"), format!("time/total_timesteps,rollout/ep_rew_mean\n{rows}")).unwrap();
            Recorded::open(dir.path()).unwrap()
        };
        let [usual, huge, odd] = ["0,1\n10,2\n", "-1e308,1.7e308\n1.7e308,-1.7e308\n", "nan,1\n,1\ninf,3\n"].map(run);
        assert!(curve(&[], X[0].0).line.is_empty() && curve(&[run("0,1\n")], X[1].0).line.is_empty());
        assert!(curve(std::slice::from_ref(&odd), X[0].0).line.is_empty());
        let alone = curve(std::slice::from_ref(&usual), X[0].0);
        assert_eq!(curve(&[usual, odd], X[0].0).line, alone.line);
        let curve = curve(&[huge, run("-1.7e308,-1.7e308\n1.7e308,1.7e308\n")], X[0].0);
        let finite = |points: &[Point]| points.len() == POINTS && points.iter().all(|(x, y)| x.is_finite() && y.is_finite());
        assert!([&curve.line, &curve.low, &curve.high].into_iter().all(|points| finite(points)), "{curve:?}");
    }
}
