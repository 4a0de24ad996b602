//! Display of episodes: in a terminal, as an animated GIF, or not at all.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use rl_agents::Episode;
use rl_envs::{Canvas, VecEnv};

use crate::cli::show::animation::Animation;
use crate::cli::show::full_screen::{self, FullScreen};
use crate::interrupt;
use crate::run::watch::Seen;

/// Maximum sleep between checks for Ctrl-C.
const PATIENCE: Duration = Duration::from_millis(50);

/// Display of episodes.
#[derive(Debug)]
pub(crate) enum Show {
    /// No display.
    Nowhere,
    /// The terminal on stdout.
    Screen(Screen),
    /// An animation, with pictures that fit the canvas.
    Animation(Animation, Canvas),
}

impl Show {
    /// Shows one moment of an episode.
    pub(crate) fn look(&mut self, seen: &Seen<'_>) {
        match (self, seen) {
            (Self::Screen(screen), Seen::Step { envs, number, running }) => screen.show(*envs, *number, running),
            (Self::Animation(animation, canvas), Seen::Step { envs, .. }) => {
                envs.render(0, canvas);
                animation.push(canvas);
            }
            (Self::Animation(animation, _), Seen::End(_)) => animation.dwell(),
            (Self::Nowhere, _) | (Self::Screen(_), Seen::End(_)) => {}
        }
    }
}

/// Formats a picture for a terminal with 24-bit colours, two pixels per character.
fn terminal(canvas: &Canvas) -> String {
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

/// A terminal that shows pictures.
#[derive(Debug)]
pub(crate) struct Screen {
    canvas: Canvas,
    period: Duration,
    next: Instant,
    _screen: FullScreen,
}

impl Screen {
    /// Opens a screen for `fps` pictures per second, as large as the terminal allows.
    ///
    /// No side of a picture exceeds `max_size` pixels.
    ///
    /// # Panics
    /// If `fps` is 0.
    #[must_use]
    pub(crate) fn open(max_size: usize, fps: u32) -> Self {
        let (columns, rows) = full_screen::size();
        // One line for text below, and one for the cursor.
        let height = 2 * usize::from(rows.saturating_sub(2).max(1));
        let canvas = Canvas::new(usize::from(columns).min(max_size), height.min(max_size));
        Self { canvas, period: Duration::from_secs(1) / fps, next: Instant::now(), _screen: FullScreen::open() }
    }

    fn show(&mut self, envs: &dyn VecEnv, number: usize, running: &Episode) {
        envs.render(0, &mut self.canvas);
        let Episode { episode_return, length } = running;
        let words = format!("episode {}, step {length}, return {episode_return:.1}", number + 1);
        full_screen::show(&format!("\x1b[H{}{words}\x1b[K", terminal(&self.canvas)));
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
