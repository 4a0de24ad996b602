//! `rl site`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use crate::cli::args::{parse_ms, parse_name, parse_share};
use crate::cli::signals;
use crate::sources::latency::Distribution;
use crate::sources::site::{Site, SiteConfig};
use crate::{Error, interrupt, print};

#[derive(Args)]
#[command(after_help = "\
Examples:
  rl site --latency exp --latency-ms 50
  rl site --port 0 --errors 0.01 --hangs 0.005 --malformed 0.01

Site N is at /N/, counts are at /stats. Ctrl-C ends it. `rl train crawl` crawls the sites of the default port.")]
pub(crate) struct SiteArgs {
    /// Port on this host; 0: a free one
    #[arg(long, default_value_t = 8017)]
    port: u16,
    /// Seed of pages, delays and faults
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Pages of each site
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    pages: u32,
    /// Links of each page
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=1000))]
    links: u32,
    /// Topics of the pages
    #[arg(long, default_value_t = SiteConfig::MAX_TOPICS, value_parser = clap::value_parser!(u32).range(1..=i64::from(SiteConfig::MAX_TOPICS)))]
    topics: u32,
    /// fixed, exp or pareto
    #[arg(long, default_value = "fixed", value_parser = parse_name::<Distribution>)]
    latency: Distribution,
    /// Mean delay of an answer, in ms
    #[arg(long, default_value_t = 0.0, value_parser = parse_ms)]
    latency_ms: f64,
    /// Share of requests answered by an error
    #[arg(long, default_value_t = 0.0, value_parser = parse_share)]
    errors: f32,
    /// Share of requests that are not answered
    #[arg(long, default_value_t = 0.0, value_parser = parse_share)]
    hangs: f32,
    /// Share of pages that redirect to another
    #[arg(long, default_value_t = 0.0, value_parser = parse_share)]
    redirects: f32,
    /// Share of pages of malformed HTML
    #[arg(long, default_value_t = 0.0, value_parser = parse_share)]
    malformed: f32,
    /// Share of pages that never end
    #[arg(long, default_value_t = 0.0, value_parser = parse_share)]
    endless: f32,
}

/// Poll interval for Ctrl-C.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &SiteArgs, json: bool) -> Result<ExitCode, Error> {
    signals::listen();
    let &SiteArgs { port, seed, pages, links, topics, latency, latency_ms, errors, hangs, redirects, malformed, endless } = args;
    let mean = Duration::from_secs_f64(1e-3 * latency_ms);
    let config = SiteConfig { seed, pages, links, topics, latency, mean, errors, hangs, redirects, malformed, endless };
    let site = Site::start(config, port).map_err(|error| Error::config(format!("--port {port}: {error}")))?;
    let url = site.url();
    if json {
        print::out(&json!({"event": "site", "url": url}).to_string());
    } else {
        print::out(&format!("sites at {url}/N/ for every number N, counts at {url}/stats; Ctrl-C ends"));
    }
    while !interrupt::requested() {
        std::thread::sleep(POLL_INTERVAL);
    }
    let mut stats = site.stats();
    if json {
        stats["event"] = "done".into();
        print::out(&stats.to_string());
    } else {
        print::out(&stats.to_string());
    }
    Ok(ExitCode::SUCCESS)
}
