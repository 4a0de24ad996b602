//! The board of a running training, drawn on a thread of its own.

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ratatui::Terminal;

use crate::cli::show::board::Board;
use crate::cli::show::full_screen::{self, Ansi, FullScreen};
use crate::cli::show::heartbeat::Status;
use crate::cli::show::recorded::Recorded;
use crate::report::metrics::{EVALUATION, Row};
use crate::report::resources::ThreadMeter;
use crate::thread::{self, Thread};
use crate::{Config, Error, print};

/// Interval between two pictures.
pub(crate) const EVERY: Duration = Duration::from_millis(250);

/// Seconds of training between rows that the board sees; evaluations aside.
const ROWS_EVERY: f64 = 0.02;

/// Rows that are not on the board yet.
#[derive(Debug, Default)]
struct Unseen {
    rows: Vec<Row>,
    ended: bool,
}

/// Channel from the training to the thread that draws.
#[derive(Debug, Default)]
struct Inbox {
    unseen: Mutex<Unseen>,
    changed: Condvar,
}

impl Inbox {
    fn locked(&self) -> MutexGuard<'_, Unseen> {
        self.unseen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The board of a training; the screen closes when it is dropped.
#[derive(Debug)]
pub(crate) struct Live {
    inbox: Arc<Inbox>,
    status: Status,
    painter: Option<Thread<()>>,
}

impl Live {
    /// Opens the screen and begins to draw.
    ///
    /// # Errors
    /// [`Error::Thread`] if no thread can be spawned.
    pub(crate) fn open(config: &Config, dir: &Path) -> Result<Self, Error> {
        let inbox: Arc<Inbox> = Arc::default();
        let (board, dir, theirs) = (Board::new(config, dir.display().to_string()), dir.to_path_buf(), inbox.clone());
        let status = Status::default();
        let shown = status.clone();
        let screen = FullScreen::open();
        let painter = thread::spawn("board", move || {
            let _screen = screen;
            paint(board, &dir, &theirs, &shown);
        });
        Ok(Self { inbox, status, painter: Some(painter?) })
    }

    /// Text that the board shows in place of the numbers, until the next row.
    pub(crate) fn status(&self) -> Status {
        self.status.clone()
    }

    /// Adds a row, which the next picture shows.
    pub(crate) fn row(&self, row: &Row) {
        let elapsed = |row: &Row| row.value("time/time_elapsed");
        let mut unseen = self.inbox.locked();
        match unseen.rows.last_mut() {
            // Thousands of rows a second would only slow the board down.
            Some(last) if last.value(EVALUATION).is_nan() && elapsed(row) - elapsed(last) < ROWS_EVERY => last.clone_from(row),
            _ => unseen.rows.push(row.clone()),
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.inbox.locked().ended = true;
        self.inbox.changed.notify_all();
        if let Some(Err(error)) = self.painter.take().map(Thread::join) {
            print::err(&format!("warning: {error}"));
        }
    }
}

/// Draws the board until the training ends.
fn paint(mut board: Board, dir: &Path, inbox: &Inbox, status: &Status) {
    let (mut painter, mut threads) = (Painter::new(dir), ThreadMeter::default());
    loop {
        let waited = inbox.changed.wait_timeout_while(inbox.locked(), EVERY, |unseen| !unseen.ended);
        let Unseen { rows, ended } = {
            let (mut unseen, _) = waited.unwrap_or_else(PoisonError::into_inner);
            Unseen { rows: std::mem::take(&mut unseen.rows), ended: unseen.ended }
        };
        if ended {
            return;
        }
        rows.iter().for_each(|row| board.push(|name| row.value(name)));
        let mut status = status.lock().unwrap_or_else(PoisonError::into_inner);
        if !rows.is_empty() {
            status.clear();
        }
        board.status.clone_from(&status);
        drop(status);
        if let Some(busiest) = threads.busiest() {
            board.threads = busiest;
        }
        painter.paint(&mut board);
    }
}

/// Draws boards with what the run's other files tell.
pub(crate) struct Painter {
    /// `None` if the terminal has no size.
    terminal: Option<Terminal<Ansi>>,
    dir: std::path::PathBuf,
    /// Latencies of each environment, once there are some.
    envs: Option<Recorded>,
}

impl Painter {
    pub(crate) fn new(dir: &Path) -> Self {
        Self { terminal: Terminal::new(Ansi::new()).ok(), dir: dir.into(), envs: None }
    }

    /// Draws a picture.
    pub(crate) fn paint(&mut self, board: &mut Board) {
        let path = self.dir.join("envs.csv");
        match &mut self.envs {
            // What cannot be read now is read later.
            Some(envs) => drop(envs.refresh()),
            none => *none = path.is_file().then(|| Recorded::of(path).ok()).flatten(),
        }
        if let Some(envs) = &mut self.envs {
            envs.forget_all_but_last(ENVS);
            board.envs = latest(envs);
        }
        board.messages = print::last_held(2);
        if let Some(terminal) = &mut self.terminal {
            // Writing to a string cannot fail.
            if full_screen::was_cleared() {
                let _ = terminal.clear();
            }
            let _ = terminal.draw(|frame| board.draw(frame));
        }
    }
}

/// Environments whose latencies are kept.
const ENVS: usize = 4096;

/// Returns index, p50, p95 and maximum of each environment in the latest rows.
fn latest(envs: &Recorded) -> Vec<[f64; 4]> {
    let of = |name: &str| envs.column(name).collect::<Vec<f64>>();
    let [iteration, env, p50, p95, max] =
        ["time/iterations", "env", "latency_p50_ms", "latency_p95_ms", "latency_max_ms"].map(of);
    let last = iteration.last().copied();
    (0..env.len()).filter(|&i| Some(iteration[i]) == last && !p50[i].is_nan()).map(|i| [env[i], p50[i], p95[i], max[i]]).collect()
}
