//! `rl watch`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use rl_agents::{Episode, EvalConfig, Played};
use rl_envs::Canvas;

use crate::cli::envs::{Envs, saved_policy};
use crate::cli::show::animation::Animation;
use crate::cli::show::full_screen::FullScreen;
use crate::cli::show::report::evaluation_json;
use crate::cli::show::screen::{Screen, Show};
use crate::cli::signals;
use crate::config::RunConfig;
use crate::print::grouped;
use crate::run::checkpoint::SavedPolicy;
use crate::run::evaluation::{Evaluation, evaluation_seed};
use crate::{Error, interrupt, print, run::watch};

#[derive(Args)]
#[command(after_help = "\
Examples:
  rl watch runs/cartpole-ppo-seed0-1
  rl watch runs/cartpole-ppo-seed0-1 --gif cartpole.gif --episodes 3

The episodes are those of `rl eval` with the same seed. Every state that the policy acted on is shown, from an episode's start to
the state before its last step. A GIF holds the first 1000 steps. Without --gif, the terminal shows the episodes (it needs 24-bit
colours); if stdout is not a terminal, each episode gets a line.")]
pub(crate) struct WatchArgs {
    /// The directory of a run, or of one of its checkpoints
    path: PathBuf,
    /// Take the checkpoint with the best evaluation instead of the newest
    #[arg(long)]
    best: bool,
    /// Write an animated GIF, replacing an existing file
    #[arg(long, value_name = "FILE")]
    gif: Option<PathBuf>,
    /// Number of episodes
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    episodes: u32,
    /// Seed of the environments
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Pixels of the picture's longer side [default: 400, or the size of the terminal]
    #[arg(long, value_name = "PX", value_parser = clap::value_parser!(u32).range(1..=4096))]
    size: Option<u32>,
    /// Steps shown per second
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=50))]
    fps: u32,
}

pub(crate) fn run(args: &WatchArgs, envs: &Envs, json: bool) -> Result<ExitCode, Error> {
    let WatchArgs { gif, fps, seed, .. } = args;
    let SavedPolicy { path, config, entry, policy, .. } = saved_policy(&args.path, args.best, 1, envs, true)?;
    let seen = watch::can_be_seen(&*policy, &entry)?;
    signals::listen();
    let mut show = match gif {
        Some(_) if !seen => {
            return Err(Error::Config { problems: vec![format!("{} does not draw itself; leave out --gif", entry.name)] });
        }
        Some(gif) => {
            let size = args.size.unwrap_or(400) as usize;
            Show::Animation(Animation::create(gif, *fps)?, Canvas::new(size, size))
        }
        None if FullScreen::is_possible() && seen && !json => {
            Show::Screen(Screen::open(args.size.unwrap_or(4096) as usize, *fps))
        }
        None => Show::Nowhere,
    };
    let mut lines = Vec::new();
    let shows_now = !json && !matches!(show, Show::Screen(_));
    let RunConfig { eval_max_steps, on_nonfinite, .. } = config.run;
    let eval = EvalConfig { seed: evaluation_seed(*seed), stochastic: false, max_steps: eval_max_steps, on_nonfinite };
    let played = watch::play(&*policy, &entry, args.episodes as usize, &eval, &mut |seen| {
        show.look(&seen);
        let watch::Seen::End(episode) = seen else { return };
        let Episode { episode_return, length } = episode;
        lines.push(format!("episode {}: return {episode_return:.1}, length {length}", lines.len() + 1));
        if shows_now {
            print::out(&lines[lines.len() - 1]);
        }
    });
    let animation = match show {
        Show::Animation(animation, _) => Some(animation),
        // Closes the screen, so that text stays readable.
        Show::Screen(_) | Show::Nowhere => None,
    };
    let Played { episodes: played, cut } = played?;
    if !json && !shows_now {
        lines.iter().for_each(|line| print::out(line));
    }
    if cut > 0 {
        print::err(&format!("note: {cut} of {} episodes were cut, as in an evaluation of the run", played.len()));
    }
    if interrupt::requested() {
        if animation.is_some() {
            print::err("interrupted: no GIF is written");
        }
        return Ok(ExitCode::from(interrupt::EXIT_CODE));
    }
    let frames = animation.as_ref().map_or(0, Animation::frames);
    let (width, height) = animation.as_ref().map_or((0, 0), Animation::size);
    let left_out = animation.as_ref().map_or(0, Animation::left_out);
    if left_out > 0 {
        print::err(&format!("warning: {left_out} states are not in the GIF: they have no picture, or one of another size"));
    }
    if animation.is_some() && frames == 0 {
        return Err(rl_envs::Error::Outside(format!("{} has drawn no picture; no GIF is written", entry.name)).into());
    }
    let bytes = animation.map(Animation::finish).transpose()?;
    if json {
        let mut object = evaluation_json(&Evaluation::new(&played, cut));
        object["event"] = "watch".into();
        object["env"] = entry.name.into();
        object["seed"] = (*seed).into();
        object["checkpoint"] = path.display().to_string().into();
        object["returns"] = played.iter().map(|episode| episode.episode_return).collect();
        object["lengths"] = played.iter().map(|episode| episode.length).collect();
        object["frames"] = frames.into();
        object["gif"] = gif.as_ref().map(|gif| gif.display().to_string()).into();
        print::out(&object.to_string());
    } else if let (Some(gif), Some(bytes)) = (gif, bytes) {
        let bytes = grouped(bytes as u64);
        print::out(&format!("{}: {frames} frames of {width} x {height} pixels, {bytes} bytes", gif.display()));
        let steps: u64 = played.iter().map(|episode| u64::from(episode.length)).sum();
        if steps > (frames + left_out) as u64 {
            print::out(&format!("the GIF holds the first {} of {} steps", grouped(frames as u64), grouped(steps)));
        }
    }
    Ok(ExitCode::SUCCESS)
}
