//! Work that is repeated, as a graph.

use rl_cuda::{Graph, Stream};

use crate::Error;

/// Graph of the work of a plan, which is run once before it is captured.
#[derive(Debug)]
pub(crate) struct UpdateGraph<P> {
    ran: Option<P>,
    graph: Option<Graph>,
}

impl<P> Default for UpdateGraph<P> {
    fn default() -> Self {
        Self { ran: None, graph: None }
    }
}

impl<P: Copy + PartialEq> UpdateGraph<P> {
    /// Enqueues the work of a plan.
    pub(crate) fn run(&mut self, stream: &Stream, plan: &P, work: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        if self.ran != Some(*plan) {
            self.graph = None;
            work()?;
            self.ran = Some(*plan);
            return Ok(());
        }
        let graph = match &mut self.graph {
            Some(graph) => graph,
            None => self.graph.insert(stream.capture(work)?),
        };
        Ok(graph.launch()?)
    }

    /// True if the work is a launch of a graph.
    #[cfg(test)]
    pub(crate) fn is_captured(&self) -> bool {
        self.graph.is_some()
    }
}
