//! Advice from measured times: the bottleneck, and the setting that widens it.

use crate::Config;
use crate::Mode;
use crate::config::Drive;
use crate::report::profile::{Phase, Profile};
use crate::sources::worker;
use crate::thread::cores;

/// Share of the time, in percent, below which a change is not worth advice.
const WORTHWHILE: f64 = 10.0;

/// Share of the time waited for a core above which a machine is busy.
const BUSY: f64 = 0.2;

/// Facts about a run that decide which advice fits.
#[derive(Clone, Debug)]
pub(crate) struct Circumstances {
    pub(crate) mode: Mode,
    /// True if environments block, each on its own thread.
    pub(crate) blocks: bool,
    pub(crate) n_envs: usize,
    pub(crate) threads: usize,
    /// Threads that collect in an overlapped run of environments that compute.
    pub(crate) collect_threads: usize,
    /// Cores of the machine.
    pub(crate) cores: usize,
    /// Worker processes that step together; 0 if there are none.
    pub(crate) workers: usize,
    /// Cores in use by this process and its workers; NaN if they are not measured.
    pub(crate) cores_in_use: f64,
    /// Share of the time for which the learner's thread waited for a core.
    ///
    /// NaN if it is not measured.
    pub(crate) waited: f64,
}

impl Circumstances {
    /// Returns the circumstances of a run; `value` is a column of its last row.
    pub(crate) fn new(config: &Config, value: impl Fn(&str) -> f64) -> Self {
        Self {
            mode: config.mode(),
            blocks: value("env/latency_max_ms").is_finite(),
            n_envs: config.run.n_envs,
            threads: config.run.threads,
            collect_threads: config.collector_threads(),
            cores: cores(),
            workers: if worker::is_one(&config.env.name) && config.run.drive == Drive::Lockstep { config.workers() } else { 0 },
            cores_in_use: value("system/cpu_cores"),
            waited: value("system/cpu_waited"),
        }
    }

    /// Returns advice for a run with this profile.
    pub(crate) fn advice(&self, profile: &Profile) -> String {
        let whole = profile.elapsed_s();
        self.advice_of(|phase| profile.seconds(phase) / whole)
    }

    /// Returns advice; `share` is a phase's share of the time, from 0 to 1.
    pub(crate) fn advice_of(&self, share: impl Fn(Phase) -> f64) -> String {
        let share = |phase| 100.0 * share(phase);
        let Self { threads, cores, workers, .. } = *self;
        let preprocessing = share(Phase::Preprocessing);
        let collecting = share(Phase::Envs) + preprocessing + share(Phase::Policy);
        let update = share(Phase::Targets) + share(Phase::Update);
        let aside = share(Phase::Evaluation) + share(Phase::Checkpoint);
        if threads > cores {
            return format!(
                "threads is {threads}, but there are {cores} cores: threads beyond the cores wait for each other; try --threads {cores}"
            );
        }
        if workers > cores && self.cores_in_use > cores as f64 - 0.5 {
            return format!(
                "workers is {workers}, but there are {cores} cores, all in use: workers beyond the cores wait for each other; try \
                 --set workers={cores}"
            );
        }
        // Threads that wait for a core although the run does not use all of them wait for other programs.
        if self.waited > BUSY && self.cores_in_use < cores as f64 - 0.5 {
            return format!(
                "the machine is busy: other programs run, and this one got {:.1} of {cores} cores and waited for a core {:.0}% of \
                 the time; measure and tune on a machine that is free",
                self.cores_in_use,
                100.0 * self.waited
            );
        }
        match self.mode {
            _ if aside > update.max(collecting) => format!(
                "evaluations and checkpoints took {aside:.0}% of the time, updates {update:.0}%; try a larger --eval-every, and checkpoint_every = 0"
            ),
            Mode::Sync if update < collecting && 2.0 * preprocessing > collecting => format!(
                "collecting took {collecting:.0}% of the time, {preprocessing:.0}% for pictures and stacks of them: they are the bottleneck; try a smaller env.pixels or env.frame_stack"
            ),
            Mode::Sync => self.in_turn(collecting, update),
            Mode::Overlapped { max_lag: 0 } => {
                let hidden = update.min(collecting);
                format!("with max_lag=0 collecting and updates take turns; --set max_lag=1 could hide {hidden:.0}% of the time")
            }
            Mode::Overlapped { .. } => self.overlapped(share),
        }
    }

    /// Advice for collecting and learning one after the other.
    fn in_turn(&self, collecting: f64, update: f64) -> String {
        let hidden = update.min(collecting);
        let measured = format!("collecting took {collecting:.0}% and updates {update:.0}% of the time");
        // Environments that compute need a core to hide on.
        let idle = self.cores as f64 - self.cores_in_use;
        let has_room = self.cores > 1 && (idle.is_nan() || idle >= 0.5);
        if hidden >= WORTHWHILE && (self.blocks || has_room) {
            return format!("{measured}, one after the other; --set pipeline=overlapped could hide up to {hidden:.0}%");
        }
        if update > collecting {
            return format!("{measured}: the learner is the bottleneck; {}", self.faster_learner());
        }
        format!("{measured}: the environments are the bottleneck; {}", self.faster_envs(self.threads, "--threads "))
    }

    /// Advice for collecting and learning at the same time.
    fn overlapped(&self, share: impl Fn(Phase) -> f64) -> String {
        let (learner, producers) = (share(Phase::WaitProducers), share(Phase::WaitLearner));
        if learner.max(producers) < WORTHWHILE {
            return format!("balanced: the learner waited {learner:.0}% of its time, the producer {producers:.0}%");
        }
        if learner < producers {
            let measured = format!("the learner is the bottleneck: the producer waited {producers:.0}% of its time");
            return format!("{measured}; {}", self.faster_learner());
        }
        let measured = format!("the learner waited {learner:.0}% of its time");
        if self.blocks && share(Phase::Policy) > share(Phase::Envs) {
            return format!("acting is the bottleneck: {measured}; try smaller networks");
        }
        let name = if self.blocks { "environments are" } else { "collecting is" };
        format!("{name} the bottleneck: {measured}; {}", self.faster_envs(self.collect_threads, "--set collect_threads="))
    }

    fn faster_learner(&self) -> String {
        let Self { threads, cores, .. } = self;
        let more = if threads < cores { format!("--threads {cores}, ") } else { String::new() };
        format!("try {more}larger minibatches, fewer epochs or smaller networks")
    }

    /// Advice for environments that `threads` threads step, set by `option`.
    fn faster_envs(&self, threads: usize, option: &str) -> String {
        let more = 2 * self.n_envs;
        match (self.blocks, threads < self.cores) {
            (true, _) => format!("try --envs {more}, which wait at the same time"),
            (false, true) => format!("try {option}{}", (threads + 1).min(self.cores)),
            (false, false) => {
                format!(
                    "all {} cores step them; --envs {more} would cost less per step, and may need more steps to learn",
                    self.cores
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two of eight cores step and learn from 32 environments.
    const RUN: Circumstances = Circumstances {
        mode: Mode::Sync,
        blocks: false,
        n_envs: 32,
        threads: 2,
        collect_threads: 1,
        cores: 8,
        workers: 0,
        cores_in_use: 1.9,
        waited: 0.01,
    };

    fn advice(run: &Circumstances, shares: &[(Phase, f64)]) -> String {
        run.advice_of(|phase| shares.iter().find(|(other, _)| *other == phase).map_or(0.0, |(_, share)| *share))
    }

    fn check(run: &Circumstances, shares: &[(Phase, f64)], expected: &[&str], absent: &str) {
        let advice = advice(run, shares);
        assert!(expected.iter().all(|text| advice.contains(text)), "{advice}");
        assert!(absent.is_empty() || !advice.contains(absent), "{advice}");
    }

    #[test]
    fn in_turn_the_larger_part_is_the_bottleneck_and_overlap_is_advised_only_where_it_hides_something() {
        let (half, learner, envs) = (
            [(Phase::Envs, 0.4), (Phase::Update, 0.6)],
            [(Phase::Envs, 0.02), (Phase::Update, 0.98)],
            [(Phase::Envs, 0.95), (Phase::Update, 0.05)],
        );
        check(&RUN, &half, &["collecting took 40% and updates 60%", "pipeline=overlapped could hide up to 40%"], "");
        check(&RUN, &learner, &["the learner is the bottleneck", "--threads 8", "minibatches"], "overlapped");
        check(&RUN, &envs, &["the environments are the bottleneck; try --threads 3"], "overlapped");
        // All cores are in use: overlapping would hide nothing, and more threads would only wait.
        let busy = Circumstances { threads: 8, cores_in_use: 7.8, ..RUN };
        check(&busy, &half, &["the learner is the bottleneck; try larger minibatches"], "overlapped");
        check(&busy, &envs, &["all 8 cores step them; --envs 64"], "--threads");
        // Environments that block wait without a core.
        check(&Circumstances { blocks: true, ..busy.clone() }, &half, &["overlapped could hide up to 40%"], "");
        check(&Circumstances { blocks: true, ..busy }, &envs, &["try --envs 64, which wait at the same time"], "threads");
        // Preprocessing that takes less than half of collecting is not the bottleneck.
        let drawing = [(Phase::Envs, 0.1), (Phase::Preprocessing, 0.5), (Phase::Update, 0.4)];
        check(&RUN, &drawing, &["collecting took 60%", "50% for pictures", "a smaller env.pixels"], "overlapped");
        check(&RUN, &[(Phase::Envs, 0.6), drawing[1], drawing[2]], &["pipeline=overlapped could hide up to 40%"], "pixels");
    }

    #[test]
    fn overlapped_the_side_that_does_not_wait_is_the_bottleneck() {
        let run = Circumstances { mode: Mode::Overlapped { max_lag: 1 }, ..RUN };
        let blocking = Circumstances { blocks: true, ..run.clone() };
        let waits = [(Phase::WaitProducers, 0.9)];
        check(&blocking, &waits, &["environments are the bottleneck: the learner waited 90%", "try --envs 64"], "");
        check(&blocking, &[waits[0], (Phase::Policy, 0.5)], &["acting is the bottleneck"], "--envs");
        check(&run, &waits, &["collecting is the bottleneck", "try --set collect_threads=2"], "");
        check(&run, &[(Phase::WaitLearner, 0.9)], &["the learner is the bottleneck: the producer waited 90%"], "");
        check(&run, &[(Phase::Update, 0.9)], &["balanced"], "try");
        check(&Circumstances { mode: Mode::Overlapped { max_lag: 0 }, ..RUN }, &waits, &["--set max_lag=1"], "");
    }

    #[test]
    fn threads_beyond_the_cores_and_evaluations_are_named_first() {
        let shares = [(Phase::Evaluation, 0.6), (Phase::Update, 0.3)];
        check(&RUN, &shares, &["evaluations and checkpoints took 60%", "try a larger --eval-every"], "");
        check(&Circumstances { threads: 16, ..RUN }, &shares, &["threads is 16, but there are 8 cores", "try --threads 8"], "");
        let crowded = Circumstances { workers: 16, cores_in_use: 7.8, ..RUN };
        check(&crowded, &shares, &["workers is 16, but there are 8 cores", "try --set workers=8"], "");
        check(&Circumstances { cores_in_use: 1.0, ..crowded }, &shares, &["evaluations"], "workers");
    }

    #[test]
    fn a_machine_that_others_keep_busy_is_named_before_any_setting() {
        let busy = Circumstances { waited: 0.6, cores_in_use: 0.5, cores: 2, ..RUN };
        let shares = [(Phase::Update, 0.95), (Phase::Envs, 0.05)];
        check(&busy, &shares, &["the machine is busy", "got 0.5 of 2 cores", "60% of the time"], "minibatches");
        // A run that uses every core waits for its own threads.
        check(&Circumstances { cores_in_use: 1.9, ..busy.clone() }, &shares, &["the learner is the bottleneck"], "busy");
        check(&Circumstances { waited: f64::NAN, ..busy }, &shares, &["the learner is the bottleneck"], "busy");
    }
}
