//! The board: curves, rates and shares of time of a run, from its rows.

use std::collections::VecDeque;
use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType, Paragraph, Wrap};
use rl_cuda::Reading;

use crate::Config;
use crate::cli::show::chart::{Point, short};
use crate::print::{grouped, shown};
use crate::report::advice::Circumstances;
use crate::report::metrics::{EVALUATION, LAGS, PHASES};
use crate::report::profile::Phase;

/// Seconds over which rates and shares are taken.
const WINDOW: f64 = 5.0;
/// Interval of the moments within the window, in seconds.
const EVERY: f64 = 0.1;
/// Points of a curve at which it loses every other one.
const MAX_POINTS: usize = 600;

/// Age at which the board tells how old the last row is.
const STALE: Duration = Duration::from_secs(10);

const ENV_STEPS: &str = "time/total_timesteps";
const ELAPSED: &str = "time/time_elapsed";

/// Columns that the board shows, apart from curves.
const SHOWN: [&str; 21] = [
    ENV_STEPS,
    ELAPSED,
    "time/episodes",
    "rollout/ep_rew_mean",
    "rollout/ep_len_mean",
    "time/queue",
    "env/latency_p50_ms",
    "env/latency_p95_ms",
    "env/latency_max_ms",
    "env/batch_mean",
    "env/batch_max",
    "faults/retries",
    "faults/restarts",
    "system/cpu_cores",
    "system/cpu_waited",
    "system/rss_mb",
    "system/device_mb",
    "system/gpu_percent",
    "system/gpu_memory_mb",
    "system/gpu_power_w",
    "system/gpu_temperature_c",
];

/// Values of one row.
#[derive(Clone, Debug)]
struct Moment {
    shown: [f64; SHOWN.len()],
    phases: [f64; PHASES.len()],
    lags: [f64; LAGS.len()],
}

impl Moment {
    fn of(&self, name: &str) -> f64 {
        SHOWN.iter().position(|shown| *shown == name).map_or(f64::NAN, |i| self.shown[i])
    }
}

/// State of a run, as its rows tell it.
#[derive(Debug)]
pub(crate) struct Board {
    title: String,
    dir: String,
    config: Config,
    cores: usize,
    returns: Vec<Point>,
    lengths: Vec<Point>,
    evaluations: Vec<Point>,
    /// The latest row.
    now: Option<Moment>,
    /// Moments of the last seconds, the oldest first.
    window: VecDeque<Moment>,
    /// Names and shares of a core of the busiest threads.
    pub(crate) threads: Vec<(String, f64)>,
    /// Latency of each environment that blocks: index, p50, p95, maximum in ms.
    pub(crate) envs: Vec<[f64; 4]>,
    /// The last messages.
    pub(crate) messages: Vec<String>,
    /// Time since the last row was written, where that is known.
    pub(crate) age: Option<Duration>,
    /// Work of the run since its last row; empty if rows follow each other.
    pub(crate) status: String,
}

impl Board {
    /// Creates an empty board of a run.
    pub(crate) fn new(config: &Config, dir: String) -> Self {
        let run = &config.run;
        let title = format!(
            "{}, {}: {} environments, {} threads, seed {}",
            config.env.name,
            config.algo.name(),
            grouped(run.n_envs as u64),
            run.threads,
            run.seed
        );
        Self {
            title: shown(&title).into(),
            dir: shown(&dir).into(),
            config: config.clone(),
            cores: crate::thread::cores(),
            returns: Vec::new(),
            lengths: Vec::new(),
            evaluations: Vec::new(),
            now: None,
            window: VecDeque::new(),
            threads: Vec::new(),
            envs: Vec::new(),
            messages: Vec::new(),
            age: None,
            status: String::new(),
        }
    }

    /// Adds a row; `value` returns the value of a column, NaN if it has none.
    pub(crate) fn push(&mut self, value: impl Fn(&str) -> f64) {
        let now = Moment {
            shown: SHOWN.map(&value),
            phases: PHASES.map(|(_, name)| value(name)),
            lags: LAGS.map(|(_, name)| value(name).max(0.0)),
        };
        let (x, elapsed) = (drawable(now.of(ENV_STEPS)), now.of(ELAPSED));
        for (curve, y) in [
            (&mut self.returns, now.of("rollout/ep_rew_mean")),
            (&mut self.lengths, now.of("rollout/ep_len_mean")),
            (&mut self.evaluations, value(EVALUATION)),
        ] {
            // A resumed run goes back.
            curve.truncate(curve.partition_point(|point| point.0 < x));
            if y.is_finite() && x.is_finite() {
                curve.push((x, drawable(y)));
            }
            if curve.len() > MAX_POINTS {
                let mut i = 0;
                curve.retain(|_| {
                    i += 1;
                    i % 2 == 1 // with the newest
                });
            }
        }
        // Times of phases begin again when a run is resumed.
        let goes_back = |last: &Moment| last.phases.iter().zip(&now.phases).any(|(before, after)| after < before);
        if self.window.back().is_some_and(|last| elapsed < last.of(ELAPSED) || goes_back(last)) {
            self.window.clear();
        }
        if self.window.back().is_none_or(|last| elapsed - last.of(ELAPSED) >= EVERY) {
            self.window.push_back(now.clone());
        }
        while self.window.len() > 2 && elapsed - self.window[1].of(ELAPSED) >= WINDOW {
            self.window.pop_front();
        }
        self.now = Some(now);
    }

    /// Returns seconds, env steps and seconds by phase of the window.
    fn recent(&self) -> Option<(f64, f64, [f64; PHASES.len()])> {
        let (first, last) = (self.window.front()?, self.now.as_ref()?);
        let mut phases = [0.0; PHASES.len()];
        phases.iter_mut().zip(last.phases.iter().zip(&first.phases)).for_each(|(phase, (now, then))| *phase = now - then);
        let seconds = last.of(ELAPSED) - first.of(ELAPSED);
        (seconds > 0.0).then(|| (seconds, last.of(ENV_STEPS) - first.of(ENV_STEPS), phases))
    }

    /// Returns env steps per second of the last seconds.
    fn rate(&self) -> f64 {
        self.recent().map_or(f64::NAN, |(seconds, env_steps, _)| env_steps / seconds)
    }

    /// Returns a phase's share of the last seconds.
    fn share(&self, phase: Phase) -> f64 {
        let at = PHASES.iter().position(|(other, _)| *other == phase);
        let share = at.zip(self.recent()).map_or(0.0, |(at, (seconds, _, phases))| phases[at] / seconds);
        if share.is_finite() { share } else { 0.0 }
    }

    fn of(&self, name: &str) -> f64 {
        self.now.as_ref().map_or(f64::NAN, |now| now.of(name))
    }

    fn blocks(&self) -> bool {
        self.of("env/latency_max_ms").is_finite()
    }

    /// Returns the title, the progress and the numbers as lines.
    pub(crate) fn lines(&self) -> [String; 3] {
        [format!("{}  {}", self.title, self.dir), self.progress(0).trim_start().into(), self.numbers()]
    }

    /// Draws the board.
    pub(crate) fn draw(&self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let panels = if area.height < 30 { 9 } else { area.height / 3 };
        let lengths = [1, 1, 1].map(Constraint::Length).into_iter().chain([Constraint::Fill(1)]);
        let rows = Layout::vertical(lengths.chain([panels, 2, 2].map(Constraint::Length))).split(area);
        let line = |text: String| Paragraph::new(text);
        let age = self.age.filter(|age| *age > STALE);
        let age = age.map_or_else(String::new, |age| format!(", last row {} ago", clock(age.as_secs_f64())));
        let title = Line::from(vec![Span::styled(self.title.clone(), Modifier::BOLD), Span::raw(format!("  {}{age}", self.dir))]);
        frame.render_widget(Paragraph::new(title), rows[0]);
        frame.render_widget(line(self.progress(rows[1].width)).style(Color::Green), rows[1]);
        let numbers = if self.status.is_empty() { self.numbers() } else { self.status.clone() };
        frame.render_widget(line(numbers), rows[2]);
        let [left, right] = Layout::horizontal([Constraint::Fill(1); 2]).areas(rows[3]);
        frame.render_widget(curves("return", &self.returns, &self.evaluations), left);
        frame.render_widget(curves("length", &self.lengths, &[]), right);
        let n = if self.blocks() { 3 } else { 2 };
        let columns = Layout::horizontal(vec![Constraint::Fill(1); n]).split(rows[4]);
        let texts = [("time", self.times(columns[0])), ("machine", self.machine()), ("environments", self.environments())];
        for ((name, text), area) in texts.into_iter().zip(columns.iter()) {
            frame.render_widget(Paragraph::new(text).block(Block::bordered().title(name)), *area);
        }
        frame.render_widget(line(self.advice()).style(Color::Yellow).wrap(Wrap { trim: true }), rows[5]);
        let last = self.messages.iter().rev().take(2).rev().map(|message| Line::from(message.as_str())).collect::<Vec<_>>();
        frame.render_widget(Paragraph::new(last), rows[6]);
    }

    /// Formats the steps, as a bar and in numbers.
    fn progress(&self, width: u16) -> String {
        let (done, all, elapsed) = (self.of(ENV_STEPS), self.config.run.steps as f64, self.of(ELAPSED));
        let share = (done / all).clamp(0.0, 1.0);
        let left = if self.rate() > 0.0 { clock((all - done).max(0.0) / self.rate()) } else { "?".into() };
        let text = match share.is_finite() {
            false => " no rows so far".into(),
            true => format!(
                " {:.0}% of {} env steps, {} elapsed, {left} left",
                (100.0 * share).floor(),
                grouped(all as u64),
                clock(elapsed)
            ),
        };
        bar(share, usize::from(width).saturating_sub(text.len()).min(40)) + &text
    }

    fn numbers(&self) -> String {
        let evaluation = self.evaluations.last().map_or_else(String::new, |(_, value)| format!("  eval {value:.1}"));
        let [episodes, rate] =
            [self.of("time/episodes"), self.rate()].map(|x| if x.is_finite() { grouped(x as u64) } else { "-".into() });
        let [returned, length] =
            [&self.returns, &self.lengths].map(|curve| curve.last().map_or("-".into(), |(_, y)| format!("{y:.1}")));
        format!("{rate} env steps/s  {episodes} episodes  return {returned}  length {length}{evaluation}")
    }

    /// Formats the share of time of each phase, the queue and the lag.
    fn times(&self, area: Rect) -> Vec<Line<'static>> {
        let width = usize::from(area.width).saturating_sub(22).min(30);
        let mut lines = Vec::new();
        for (phase, _) in PHASES {
            let share = self.share(phase);
            if share >= 0.005 {
                lines.push(format!("{:<14}{:>3.0}% {}", profile_name(phase), 100.0 * share, bar(share, width)).into());
            }
        }
        let Some(now) = &self.now else { return lines };
        let all: f64 = now.lags.iter().sum();
        if all > 0.0 {
            let lag = LAGS.iter().zip(&now.lags).filter(|(_, n)| **n > 0.0);
            let lag: Vec<String> = lag.map(|((least, _), n)| format!("{least}: {:.0}%", 100.0 * n / all)).collect();
            lines.push(format!("lag {}", lag.join(", ")).into());
            lines.push(format!("queue {:.1} rollouts", now.of("time/queue")).into());
        }
        lines
    }

    fn machine(&self) -> Vec<Line<'static>> {
        let [cores, rss, device] = ["system/cpu_cores", "system/rss_mb", "system/device_mb"].map(|name| self.of(name));
        let mut lines = Vec::new();
        let mut add = |value: f64, text: String| {
            if value.is_finite() {
                lines.push(Line::from(text))
            }
        };
        add(cores, format!("cores   {cores:.1} of {}", self.cores));
        add(rss, format!("memory  {} MB", grouped(rss as u64)));
        add(device, format!("device  {} MB", grouped(device as u64)));
        let of = |name| self.of(name);
        let gpu = Reading {
            utilization: 0.01 * of("system/gpu_percent"),
            power_w: of("system/gpu_power_w"),
            memory_used: 1e6 * of("system/gpu_memory_mb"),
            temperature_c: of("system/gpu_temperature_c"),
        };
        let gpu: Vec<String> = gpu.texts().collect();
        lines.extend(gpu.chunks(2).map(|pair| Line::from(format!("GPU     {}", pair.join(", ")))));
        let busy = self.threads.iter().filter(|(_, share)| *share >= 0.005);
        lines.extend(busy.map(|(name, share)| Line::from(format!("{name:<15}{:>4.0}%", 100.0 * share))));
        lines
    }

    fn environments(&self) -> Vec<Line<'static>> {
        let of = |name: &str| self.of(name);
        let ms = |[p50, p95, max]: [f64; 3]| format!("{} {} {}", brief(p50), brief(p95), brief(max));
        let all = ms(["env/latency_p50_ms", "env/latency_p95_ms", "env/latency_max_ms"].map(of));
        let mut lines = vec![
            format!("batch {:.1}, max {}", of("env/batch_mean"), of("env/batch_max")),
            format!("retries {}, restarts {}", of("faults/retries"), of("faults/restarts")),
            "ms      p50 p95 max".into(),
            format!("all     {all}"),
        ];
        let mut slowest = self.envs.clone();
        slowest.sort_by(|a, b| b[2].total_cmp(&a[2]));
        lines.extend(slowest.iter().map(|[env, p50, p95, max]| format!("env {env:<3} {}", ms([*p50, *p95, *max]))));
        lines.into_iter().map(Line::from).collect()
    }

    fn advice(&self) -> String {
        if self.recent().is_none() {
            return String::new();
        }
        Circumstances::new(&self.config, |name| self.of(name)).advice_of(|phase| self.share(phase))
    }
}

/// Short name of a phase.
fn profile_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Envs => "environments",
        Phase::WaitProducers => "learner waits",
        Phase::WaitLearner => "producer waits",
        phase => phase.name(),
    }
}

/// Formats a share as a bar of `width` characters.
fn bar(share: f64, width: usize) -> String {
    let full = if share.is_finite() { (share.clamp(0.0, 1.0) * width as f64).round() as usize } else { 0 };
    "\u{2588}".repeat(full) + &"\u{2591}".repeat(width - full)
}

/// Returns a number of which ratatui can draw multiples.
fn drawable(x: f64) -> f64 {
    x.clamp(-1e300, 1e300)
}

/// Formats seconds as 1:02:03 or 2:03.
fn clock(seconds: f64) -> String {
    let s = seconds as u64;
    let (h, m, s) = (s / 3600, s / 60 % 60, s % 60);
    if h > 0 { format!("{h}:{m:02}:{s:02}") } else { format!("{m}:{s:02}") }
}

/// Formats milliseconds in three characters.
fn brief(ms: f64) -> String {
    match ms {
        ms if ms.is_nan() => "  -".into(),
        ms if ms < 9.95 => format!("{ms:>3.1}"),
        ms if ms < 999.5 => format!("{ms:>3.0}"),
        ms => format!("{:>2.0}s", 1e-3 * ms),
    }
}

/// Returns the chart of a curve and of single points.
fn curves<'a>(name: &'a str, curve: &'a [Point], dots: &'a [Point]) -> Chart<'a> {
    let range = |of: fn(&Point) -> f64| {
        let values = || curve.iter().chain(dots).map(of);
        let (from, to) = (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max));
        if from < to {
            [from, to]
        } else if from == to {
            [from - 0.5, to + 0.5]
        } else {
            [0.0, 1.0]
        }
    };
    let (x, y) = (range(|(x, _)| *x), range(|(_, y)| *y));
    let axis = |range: [f64; 2], digits: fn(f64) -> String| Axis::default().bounds(range).labels(range.map(digits));
    let style = Style::new().fg(Color::Cyan);
    let datasets = vec![
        Dataset::default().marker(Marker::Braille).graph_type(GraphType::Line).style(style).data(curve),
        Dataset::default().marker(Marker::Dot).graph_type(GraphType::Scatter).style(Style::new().fg(Color::Red)).data(dots),
    ];
    let steps = |x: f64| short(if x < 1e4 { x.round() } else { (x / 1e3).round() * 1e3 });
    Chart::new(datasets).block(Block::bordered().title(name)).x_axis(axis(x, steps)).y_axis(axis(y, |y| format!("{y:.1}")))
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::Algo;
    use crate::config::Layers;

    /// Board after ten seconds: 25% of the time in environments, 50% in updates.
    fn board(assignments: &[&str], more: &[(&str, f64)]) -> Board {
        let mut layers = Layers::default();
        assignments.iter().chain(&["steps=200000", "threads=1"]).for_each(|assignment| layers.add_assignment(assignment));
        let config = layers.resolve(rl_envs::catalog::find("cartpole").unwrap(), Algo::PPO).unwrap();
        let mut board = Board::new(&config, "runs/cartpole-ppo-seed0-1".into());
        for i in 0..=1000 {
            let s = f64::from(i) / 100.0;
            board.push(|name| match name {
                ENV_STEPS => 1e4 * s,
                ELAPSED => s,
                "time/episodes" => 1234.0,
                "time/envs" => 0.25 * s,
                "time/update" => 0.5 * s,
                "rollout/ep_rew_mean" => 50.0 * s,
                "rollout/ep_len_mean" => 20.0 * s,
                EVALUATION if i == 1000 => 475.0,
                "system/cpu_cores" => 1.75,
                "system/rss_mb" => 1234.0,
                name => more.iter().find(|(of, _)| *of == name).map_or(f64::NAN, |(_, value)| *value),
            });
        }
        board.threads = vec![("rl".into(), 0.97), ("rl-pool-1".into(), 0.78)];
        board.messages = ["first", "second", "third"].map(String::from).into();
        board
    }

    fn drawn(board: &Board, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| board.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(row).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_gpus_readings_fit_the_smallest_board_as_far_as_there_are_any() {
        let readings = [
            ("system/gpu_percent", 93.4),
            ("system/gpu_memory_mb", 71_234.0),
            ("system/gpu_power_w", 699.6),
            ("system/gpu_temperature_c", 65.0),
            ("env/latency_max_ms", 1.0), // three panels
        ];
        let text = drawn(&board(&[], &readings), 80, 24);
        assert!(text.contains("GPU     93% busy, 700 W") && text.contains("GPU     71.2 GB, 65 \u{b0}C"), "{text}");
        let text = drawn(&board(&[], &readings[..2]), 80, 24);
        assert!(text.contains("GPU     93% busy, 71.2 GB "), "{text}");
        assert!(!drawn(&board(&[], &[]), 80, 24).contains("GPU"));
    }

    #[test]
    fn names_directories_and_messages_send_nothing_to_the_terminal() {
        let mut config = board(&[], &[]).config;
        config.env.name = "exec:\x1b]0;name\x07".into();
        let mut board = Board::new(&config, "runs/\x1b[2J\u{202e}".into());
        board.messages = vec!["a message \x1b[2J\u{9b}2J".into()];
        let text = drawn(&board, 200, 30);
        assert!(text.contains("exec:\\u001b]0;name\\u0007, ppo") && text.contains("runs/\\u001b[2J\\u202e"), "{text}");
        assert!(text.contains("a message ") && !text.replace('\n', "").contains(char::is_control), "{text}");
    }

    #[test]
    fn a_computing_run_has_its_curves_rates_and_shares_of_time_in_any_size() {
        let board = board(&[], &[]);
        for (width, height) in [(80, 24), (200, 60)] {
            let text = drawn(&board, width, height);
            for expected in [
                "cartpole, ppo: 8 environments, 1 threads, seed 0  runs/cartpole-ppo-seed0-1",
                "50% of 200,000 env steps, 0:10 elapsed, 0:10 left",
                // Of the last five seconds, in which the rate was the same.
                "10,000 env steps/s  1,234 episodes  return 500.0  length 200.0  eval 475.0",
                "return\u{2500}",
                "length\u{2500}",
                "environments   25% ",
                "update         50% ",
                "cores   1.8 of ",
                "memory  1,234 MB",
                "rl               97%",
                "rl-pool-1        78%",
                "collecting took 25% and updates 50% of the time",
                "second",
                "third",
                "100 k",
            ] {
                assert!(text.contains(expected), "{expected} is missing at {width} x {height}:\n{text}");
            }
            assert!(!text.contains("first") && !text.contains("latency"), "{text}");
            assert!(text.chars().filter(|c| ('\u{2801}'..='\u{28ff}').contains(c)).count() > 20, "no curve:\n{text}");
        }
        for (width, height) in [(0, 0), (1, 1), (20, 5), (79, 23)] {
            drawn(&board, width, height);
        }
    }

    #[test]
    fn a_blocking_run_has_latencies_batches_and_lag() {
        let more = [
            ("env/latency_p50_ms", 12.3),
            ("env/latency_p95_ms", 250.4),
            ("env/latency_max_ms", 12_345.0),
            ("env/batch_mean", 3.25),
            ("env/batch_max", 8.0),
            ("faults/retries", 4.0),
            ("faults/restarts", 1.0),
            ("pipeline/lag_0", 25.0),
            ("pipeline/lag_1", 75.0),
            ("time/queue", 0.75),
        ];
        let mut board = board(&["pipeline=overlapped"], &more);
        board.envs = vec![[0.0, 9.9, 10.2, 11.0], [7.0, 20.0, 900.0, 2000.0]];
        for (width, height) in [(80, 24), (200, 60)] {
            let text = drawn(&board, width, height);
            for expected in [
                "batch 3.2, max 8",
                "retries 4, restarts 1",
                "all      12 250 12s",
                "env 7    20 900  2s",
                "env 0   9.9  10  11",
                "lag 0: 25%, 1: 75%",
                "queue 0.8 rollouts",
            ] {
                assert!(text.contains(expected), "{expected} is missing at {width} x {height}:\n{text}");
            }
            assert!(text.find("env 7") < text.find("env 0"), "the slowest is first:\n{text}");
        }
    }

    #[test]
    fn a_run_without_rows_and_one_that_goes_back_are_drawn() {
        let config = board(&[], &[]).config;
        let mut board = Board::new(&config, "run".into());
        assert!(drawn(&board, 80, 24).contains("no rows so far"));
        for s in [10.0, 20.0, 12.0] {
            board.push(|name| if [ENV_STEPS, ELAPSED, "rollout/ep_rew_mean"].contains(&name) { s } else { f64::NAN });
            drawn(&board, 80, 24);
        }
        assert_eq!((board.window.len(), &board.returns[..]), (1, &[(10.0, 10.0), (12.0, 12.0)][..]));
        assert!(!drawn(&board, 80, 24).contains("ago"));
        board.age = Some(Duration::from_secs(75));
        assert!(drawn(&board, 80, 24).contains("run, last row 1:15 ago"));
        // Resumed: time goes on, and the phases begin again.
        for (elapsed, update) in [(900.0, 800.0), (910.0, 5.0)] {
            board.push(|name| match name {
                ENV_STEPS | ELAPSED => elapsed,
                "time/update" => update,
                "rollout/ep_rew_mean" => f64::MAX,
                _ => f64::NAN,
            });
            assert!(!drawn(&board, 80, 24).contains("%-"));
        }
        assert_eq!(board.window.len(), 1);
        board.push(|name| if [ENV_STEPS, ELAPSED].contains(&name) { 920.0 } else { f64::MIN });
        drawn(&board, 80, 24);
        board.status = "collecting: 800 of 8,192 env steps (10 s since the last row)".into();
        assert!(drawn(&board, 80, 24).contains("collecting: 800 of 8,192 env steps (10 s"));
    }

    #[test]
    fn long_curves_are_thinned_out() {
        let mut board = board(&[], &[]);
        for i in 200_000..210_000 {
            board.push(|_| f64::from(i));
        }
        assert!(board.returns.len() <= MAX_POINTS && board.returns.last().unwrap().1 == 209_999.0);
    }
}
