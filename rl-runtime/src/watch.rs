//! Seeing a policy act: episodes played greedily, in a terminal, as an animated GIF, or only counted.
//!
//! They are the episodes that [`evaluate_policy`](crate::train::evaluate_policy) plays for the same seed. What is seen is every
//! state that the policy acted on, from the start state to the one before the last step. The state that an episode ends in cannot
//! be seen, because environments begin their next episode in the same step.

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rl_agents::{Episode, EvalConfig, Policy, evaluate_with};
use rl_envs::{Canvas, VecEnv, catalog};

use crate::animation::Animation;
use crate::train::evaluation_seed;
use crate::{Error, interrupt, print};

/// A wait is cut into pieces of this length, so that Ctrl-C is answered soon.
const PATIENCE: Duration = Duration::from_millis(50);

/// Where episodes are shown.
#[derive(Debug)]
pub enum Show {
    /// Nowhere.
    Nowhere,
    /// In the terminal that stdout leads to.
    Screen(Screen),
    /// In an animation, in pictures that fit the canvas.
    Animation(Animation, Canvas),
}

impl Show {
    fn before_step(&mut self, envs: &dyn VecEnv, env_idx: usize, running: &Episode) {
        match self {
            Self::Nowhere => {}
            Self::Screen(screen) => screen.show(envs, env_idx, running),
            Self::Animation(animation, canvas) => {
                envs.render(0, canvas);
                animation.push(canvas);
            }
        }
    }
}

/// Plays `episodes` episodes one after the other, always taking the most likely action, and calls `ended` after each. An interrupt
/// ends it early; an episode that it has cut short is not returned.
///
/// # Errors
/// Those of the environments and of candle.
pub fn play(
    policy: &dyn Policy,
    env: &str,
    episodes: usize,
    seed: u64,
    show: &mut Show,
    ended: &mut dyn FnMut(&Episode),
) -> Result<Vec<Episode>, Error> {
    let mut played = Vec::new();
    for (env_idx, mut envs) in catalog::find(env)?.slices(episodes, episodes, 1)?.into_iter().enumerate() {
        let mut before_step = |envs: &dyn VecEnv, running: &[Episode]| {
            if interrupt::requested() {
                return ControlFlow::Break(());
            }
            show.before_step(envs, env_idx, &running[0]);
            ControlFlow::Continue(())
        };
        let config = EvalConfig::new(evaluation_seed(seed));
        let episode = evaluate_with(policy, &mut *envs, &config, &mut before_step)?.episodes;
        if interrupt::requested() {
            break;
        }
        if let Show::Animation(animation, _) = show {
            animation.dwell();
        }
        episode.iter().for_each(&mut *ended);
        played.extend(episode);
    }
    Ok(played)
}

/// Whether an environment draws itself. The policy is one for it.
///
/// # Errors
/// Those of the environments and of candle.
pub fn can_be_seen(policy: &dyn Policy, env: &str) -> Result<bool, Error> {
    let mut canvas = Canvas::new(8, 8);
    let mut envs = catalog::find(env)?.sync(1)?;
    evaluate_with(policy, &mut *envs, &EvalConfig::new(0), &mut |envs, _| {
        envs.render(0, &mut canvas);
        ControlFlow::Break(())
    })?;
    Ok(!canvas.is_empty())
}

/// A picture in characters for a terminal with 24-bit colours: two pixels, one above the other, in each.
#[must_use]
pub fn terminal(canvas: &Canvas) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    for row in (0..canvas.height()).step_by(2) {
        let mut before = None;
        for column in 0..canvas.width() {
            let top = canvas.pixel(column, row);
            let bottom = (row + 1 < canvas.height()).then(|| canvas.pixel(column, row + 1));
            if before != Some((top, bottom)) {
                let [r, g, b] = top;
                let _ = write!(text, "\x1b[38;2;{r};{g};{b}");
                let _ = match bottom {
                    Some([r, g, b]) => write!(text, ";48;2;{r};{g};{b}m"),
                    None => write!(text, ";49m"),
                };
                before = Some((top, bottom));
            }
            text.push('\u{2580}');
        }
        text.push_str("\x1b[0m\n");
    }
    text
}

/// True while a [`Screen`] has the terminal.
static OPEN: AtomicBool = AtomicBool::new(false);

/// A terminal that shows pictures. What it showed before, cursor included, returns when this is dropped, in a panic, and by
/// [`Screen::restore`].
#[derive(Debug)]
pub struct Screen {
    canvas: Canvas,
    period: Duration,
    next: Instant,
}

impl Screen {
    /// Pictures as large as the terminal has room for, and no side longer than `max_size` pixels, `fps` of them a second.
    ///
    /// # Panics
    /// If `fps` is 0.
    #[must_use]
    pub fn open(max_size: usize, fps: u32) -> Self {
        let (rows, columns) = console::Term::stdout().size();
        // A line for words below, and one for the cursor.
        let height = 2 * usize::from(rows.saturating_sub(2).max(1));
        let canvas = Canvas::new(usize::from(columns).min(max_size), height.min(max_size));
        let panicked = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // First, so that the message stays readable.
            Self::restore();
            panicked(panic);
        }));
        OPEN.store(true, Ordering::Relaxed);
        print::raw("\x1b[?1049h\x1b[?25l\x1b[2J");
        Self { canvas, period: Duration::from_secs(1) / fps, next: Instant::now() }
    }

    /// Gives the terminal back. Later pictures are not shown.
    pub fn restore() {
        // Held, so that no picture comes in between.
        let _stdout = std::io::stdout().lock();
        if OPEN.swap(false, Ordering::Relaxed) {
            print::raw("\x1b[0m\x1b[?25h\x1b[?1049l");
        }
    }

    fn show(&mut self, envs: &dyn VecEnv, env_idx: usize, running: &Episode) {
        envs.render(0, &mut self.canvas);
        let Episode { episode_return, length } = running;
        let words = format!("episode {}, step {length}, return {episode_return:.1}", env_idx + 1);
        let picture = format!("\x1b[H{}{words}\x1b[K", terminal(&self.canvas));
        let stdout = std::io::stdout().lock();
        if OPEN.load(Ordering::Relaxed) {
            print::raw(&picture);
        }
        drop(stdout);
        self.next = self.next.max(Instant::now()) + self.period;
        while !interrupt::requested() {
            let left = self.next.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(PATIENCE));
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        Self::restore();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_shows_two_pixels_and_colours_are_named_once_a_run() {
        let mut canvas = Canvas::new(3, 3);
        canvas.view(0.0..3.0, 0.0..3.0, [1, 2, 3]);
        canvas.rect(2.0..3.0, 1.0..2.0, [4, 5, 6]);
        let expected = "\x1b[38;2;1;2;3;48;2;1;2;3m\u{2580}\u{2580}\x1b[38;2;1;2;3;48;2;4;5;6m\u{2580}\x1b[0m\n\
                        \x1b[38;2;1;2;3;49m\u{2580}\u{2580}\u{2580}\x1b[0m\n";
        assert_eq!(terminal(&canvas), expected);
        assert_eq!(terminal(&Canvas::new(3, 3)), "");
    }
}
