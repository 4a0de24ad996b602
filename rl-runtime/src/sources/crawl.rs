//! Crawling: finding pages on a topic with few requests.
//!
//! Pages are fetched over HTTP, parsed, and joined into a graph. An episode begins at a URL. Each step follows one of at most K
//! links, the newest that have not been followed. The reward is 1 for a new page on the topic. An episode terminates when its
//! requests are used up, its goal is reached, or no link is left.
//!
//! Observation: for each of the K links, newest first, the share of the link's words that are of the topic, the relevance of the
//! page that has the link (the most relevant one of several), the share of relevant ones among the followed links of those pages,
//! the number of those pages and the link's depth, both scaled; then the requests that are left and the progress to the goal. All
//! are from 0 to 1. Action: index of a link. Masked where there are fewer than K.
//!
//! Only `http` and the host and port of the start are followed, through redirects too. Bytes, redirects, depth, requests and time
//! of a page are bounded. Nothing of a page is executed or stored. A page that fails is retried, and then counts as irrelevant; a
//! server that refuses connections is a fault of the environment.

use std::collections::{HashMap, HashSet};
use std::io::{self, Read as _};
use std::sync::Arc;
use std::time::Duration;

use petgraph::Direction;
use petgraph::graph::{DiGraph, NodeIndex};
use rl_agents::settings::Kind;
use rl_envs::catalog::Entry;
use rl_envs::{Action, ActionSpace, BlockingEnv, EnvError, Purpose, Rng, Space, Step};
use ureq::http::Uri;
use ureq::http::header::{CONTENT_TYPE, LOCATION};

use crate::sources::env_settings::EnvSettings;
use crate::sources::html::{parse, words};

rl_agents::settings! {
    /// Settings of `crawl`.
    pub struct CrawlConfig, "env." {
        /// crawl: URL to begin at; {} stands for a number drawn for each episode.
        url: String = "http://127.0.0.1:8017/{}/".into(), Kind::Text(is_start, "a URL that begins with http://");
        /// crawl: words of the topic.
        topic: String = "harbour anchor sail reef tide wave lagoon sailor".into(), Kind::Text(has_words, "words");
        /// crawl: share of words of the topic that makes a page relevant.
        relevant: f64 = 0.1, Kind::Float(0.0, 1.0);
        /// crawl: links to choose from.
        links: usize = 32, Kind::Int(1, 1024);
        /// crawl: requests of an episode.
        requests: u32 = 64, Kind::Int(2, 1_000_000);
        /// crawl: relevant pages that end an episode; 0: none.
        goal: u32 = 0, Kind::Int(0, 1_000_000);
        /// crawl: largest number of links between the start and a page.
        depth: u32 = 64, Kind::Int(1, 1_000_000);
        /// crawl: milliseconds until a page counts as failed.
        page_ms: f64 = 2000.0, Kind::Float(1.0, 86_400_000.0);
        /// crawl: bytes of a page that are read.
        page_bytes: u64 = 1 << 18, Kind::Int(1, 1 << 30);
        /// crawl: redirects that are followed for a page.
        redirects: u32 = 5, Kind::Int(0, 100);
        /// crawl: retries of a page that fails.
        ///
        /// At most 3: a call of an environment is repeated no more often.
        page_retries: u32 = 2, Kind::Int(0, 3);
    }
}

/// Numbers of a link in an observation.
const FEATURES: usize = 5;
/// Numbers of an observation beside those of links.
const GLOBALS: usize = 2;
/// Longest URL that is followed.
const MAX_URL: usize = 2048;

fn is_start(url: &str) -> bool {
    Address::parse(&url.replace("{}", "0")).is_some()
}

fn has_words(text: &str) -> bool {
    words(text).next().is_some()
}

impl EnvSettings for CrawlConfig {
    const NAME: &'static str = "crawl";

    fn entry(&self) -> Entry {
        let plan = Arc::new(Plan::new(self));
        let make = move || Crawl { agent: plan.agent(), plan: plan.clone(), session: None };
        Entry::blocking_with(Self::NAME, "find pages on a topic of a website with few requests", make)
    }
}

/// URL of a page, split where links are joined.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Address {
    /// Host and port.
    authority: String,
    /// Absolute path.
    path: String,
    query: Option<String>,
}

impl Address {
    /// Parses an absolute URL; `None` if it is not of HTTP.
    ///
    /// The client parses the same text by the same function.
    fn parse(url: &str) -> Option<Self> {
        let url = url.split('#').next().unwrap_or_default();
        let uri: Uri = url.parse().ok().filter(|_| url.len() <= MAX_URL)?;
        let authority =
            uri.authority().filter(|authority| uri.scheme_str() == Some("http") && !authority.as_str().contains('@'))?;
        let path = without_dots(uri.path());
        Some(Self { authority: authority.as_str().to_ascii_lowercase(), path, query: uri.query().map(Into::into) })
    }

    /// Resolves a link of this page (RFC 3986, section 5.2).
    ///
    /// Returns `None` if it leaves the host or is not of HTTP.
    fn join(&self, link: &str) -> Option<Self> {
        let link = link.trim().split('#').next().unwrap_or_default();
        let host = format!("http://{}", self.authority);
        let folder = self.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let scheme = link.split_once(':').is_some_and(|(scheme, _)| !scheme.contains(['/', '?']));
        let url = match link {
            "" => return None,
            _ if scheme => link.into(),
            _ if link.starts_with("//") => format!("http:{link}"),
            _ if link.starts_with('/') => host + link,
            _ if link.starts_with('?') => host + &self.path + link,
            _ => format!("{host}{folder}/{link}"),
        };
        Self::parse(&url).filter(|address| address.authority == self.authority)
    }

    fn url(&self) -> String {
        let query = self.query.as_ref().map_or(String::new(), |query| format!("?{query}"));
        format!("http://{}{}{query}", self.authority, self.path)
    }
}

/// Removes the segments `.` and `..` of an absolute path.
fn without_dots(path: &str) -> String {
    let mut segments = Vec::new();
    let mut folder = true;
    for segment in path.split('/').skip(1) {
        folder = matches!(segment, "" | "." | "..");
        match segment {
            ".." => drop(segments.pop()),
            "." => {}
            segment => segments.push(segment),
        }
    }
    let last = if folder && segments.last().is_some_and(|last| !last.is_empty()) { "/" } else { "" };
    format!("/{}{last}", segments.join("/"))
}

/// Failure of a request.
#[derive(Debug)]
enum Trouble {
    /// The page fails; others may not.
    Page(String),
    /// The server cannot be reached.
    Server(String),
}

/// A page that is known.
#[derive(Debug)]
struct Page {
    address: Address,
    depth: u32,
    /// Share of the words of links to it that are of the topic, the largest.
    hint: f32,
    /// Relevance, once it was fetched.
    relevance: Option<f32>,
}

/// Order of a crawl without a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// The oldest link first: breadth-first search.
    Breadth,
    /// Any link.
    Random,
    /// The link with the largest share of words of the topic, the newest of several.
    Words,
}

/// The graph of an episode.
#[derive(Debug)]
struct Session {
    agent: ureq::Agent,
    graph: DiGraph<Page, ()>,
    known: HashMap<Address, NodeIndex>,
    /// Pages that have not been fetched, oldest first.
    frontier: Vec<NodeIndex>,
    /// Failures of the page that is being fetched.
    failures: u32,
    requests: u32,
    found: u32,
}

/// Configuration and words of the topic, shared by all environments.
#[derive(Debug)]
struct Plan {
    config: CrawlConfig,
    topic: HashSet<String>,
}

impl Plan {
    fn new(config: &CrawlConfig) -> Self {
        Self { topic: words(&config.topic).map(str::to_lowercase).collect(), config: config.clone() }
    }

    fn agent(&self) -> ureq::Agent {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(Duration::from_secs_f64(1e-3 * self.config.page_ms)))
            .http_status_as_error(false)
            // Redirects are followed here, within the host.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .user_agent(concat!("rl-crawl/", env!("CARGO_PKG_VERSION")));
        config.build().into()
    }
}

impl Session {
    /// Begins an episode at `url`.
    fn begin(agent: ureq::Agent, url: &str, plan: &Plan) -> Result<Self, Trouble> {
        let address = Address::parse(url).ok_or_else(|| Trouble::Page(format!("{url} is no URL of HTTP")))?;
        let mut graph = DiGraph::new();
        let start = graph.add_node(Page { address: address.clone(), depth: 0, hint: 0.0, relevance: None });
        let known = HashMap::from([(address, start)]);
        let mut session = Self { agent, graph, known, frontier: vec![start], failures: 0, requests: 0, found: 0 };
        session.visit(0, plan)?;
        Ok(session)
    }

    /// Fetches a page, and returns its address after redirects and its HTML.
    ///
    /// Returns `None` for a page without HTML.
    fn fetch(&mut self, mut address: Address, plan: &Plan) -> Result<Option<(Address, String)>, Trouble> {
        for _ in 0..=plan.config.redirects {
            self.requests += 1;
            let url = address.url();
            let failed = |error: ureq::Error| match error {
                ureq::Error::ConnectionFailed | ureq::Error::HostNotFound => Trouble::Server(format!("{url}: {error}")),
                ureq::Error::Io(ref io) if io.kind() == io::ErrorKind::ConnectionRefused => {
                    Trouble::Server(format!("{url}: {error}"))
                }
                error => Trouble::Page(format!("{url}: {error}")),
            };
            let response = self.agent.get(&url).call().map_err(failed)?;
            let (status, headers) = (response.status(), response.headers());
            if status.is_server_error() || status.as_u16() == 429 {
                return Err(Trouble::Page(format!("{url}: {status}")));
            }
            let header = |name| headers.get(name).and_then(|value: &ureq::http::HeaderValue| value.to_str().ok());
            if status.is_redirection() {
                match header(LOCATION).and_then(|to| address.join(to)) {
                    Some(target) => address = target,
                    None => return Ok(None),
                }
                continue;
            }
            if !status.is_success() || header(CONTENT_TYPE).is_some_and(|kind| !kind.contains("html")) {
                return Ok(None);
            }
            let mut bytes = Vec::new();
            let body = response.into_body().into_reader();
            body.take(plan.config.page_bytes)
                .read_to_end(&mut bytes)
                .map_err(|error| Trouble::Page(format!("{url}: {error}")))?;
            return Ok(Some((address, String::from_utf8_lossy(&bytes).into_owned())));
        }
        Ok(None)
    }

    /// Fetches page `at` of the frontier, and adds its links.
    ///
    /// Returns true if the page is new and relevant.
    ///
    /// # Errors
    /// The trouble, while the page may be retried; nothing but counts has changed then.
    fn visit(&mut self, at: usize, plan: &Plan) -> Result<bool, Trouble> {
        let page = self.frontier[at];
        let fetched = match self.fetch(self.graph[page].address.clone(), plan) {
            Ok(fetched) => fetched,
            Err(Trouble::Page(why)) => {
                self.failures += 1;
                // The start is retried for as long as the caller likes.
                if self.failures <= plan.config.page_retries || self.graph.node_count() == 1 {
                    return Err(Trouble::Page(why));
                }
                None
            }
            Err(trouble) => return Err(trouble),
        };
        self.failures = 0;
        self.frontier.remove(at);
        self.graph[page].relevance = Some(0.0);
        let Some((address, html)) = fetched else { return Ok(false) };
        // A redirect may lead to a page that is known by its own address.
        let other = *self.known.entry(address.clone()).or_insert(page);
        if self.graph[other].relevance.is_some() && other != page {
            return Ok(false);
        }
        self.frontier.retain(|&waiting| waiting != other);
        let parsed = parse(&html, &plan.topic);
        for page in [page, other] {
            self.graph[page].relevance = Some(parsed.relevance);
        }
        let depth = self.graph[page].depth + 1;
        for (link, hint) in &parsed.links {
            if let Some(target) = address.join(link).filter(|_| depth <= plan.config.depth) {
                self.add_link(page, target, depth, *hint);
            }
        }
        let is_relevant = f64::from(parsed.relevance) >= plan.config.relevant;
        self.found += u32::from(is_relevant);
        Ok(is_relevant)
    }

    fn add_link(&mut self, from: NodeIndex, target: Address, depth: u32, hint: f32) {
        let known = self.known.get(&target).copied();
        let page = known.unwrap_or_else(|| {
            let page = self.graph.add_node(Page { address: target.clone(), depth, hint: 0.0, relevance: None });
            self.known.insert(target, page);
            self.frontier.push(page);
            page
        });
        self.graph.update_edge(from, page, ());
        self.graph[page].hint = self.graph[page].hint.max(hint);
    }

    /// True if the episode is over.
    fn is_over(&self, plan: &Plan) -> bool {
        let CrawlConfig { requests, goal, .. } = plan.config;
        self.frontier.is_empty() || self.requests >= requests || (goal > 0 && self.found >= goal)
    }

    /// Writes the features of a link.
    fn describe(&self, page: NodeIndex, plan: &Plan, to: &mut [f32]) {
        let (mut relevance, mut n, mut followed, mut relevant) = (0.0f32, 0u32, 0u32, 0u32);
        for source in self.graph.neighbors_directed(page, Direction::Incoming) {
            relevance = relevance.max(self.graph[source].relevance.unwrap_or_default());
            n += 1;
            for seen in self.graph.neighbors(source).filter_map(|target| self.graph[target].relevance) {
                followed += 1;
                relevant += u32::from(f64::from(seen) >= plan.config.relevant);
            }
        }
        let Page { hint, depth, .. } = self.graph[page];
        to[0] = hint;
        to[1] = (2.0 * relevance).min(1.0);
        to[2] = relevant as f32 / followed.max(1) as f32;
        to[3] = 1.0 - 1.0 / n.max(1) as f32;
        to[4] = 1.0 - 1.0 / (1.0 + depth as f32);
    }

    /// Writes the observation.
    fn observe(&self, plan: &Plan, obs: &mut [f32]) {
        let CrawlConfig { links, requests, goal, .. } = plan.config;
        let (of_links, globals) = obs.split_at_mut(FEATURES * links);
        of_links.fill(0.0);
        for (page, row) in self.frontier.iter().rev().zip(of_links.chunks_exact_mut(FEATURES)) {
            self.describe(*page, plan, row);
        }
        globals[0] = requests.saturating_sub(self.requests) as f32 / requests as f32;
        globals[1] = if goal == 0 { 0.0 } else { (self.found as f32 / goal as f32).min(1.0) };
    }
}

/// The environment.
#[derive(Debug)]
struct Crawl {
    plan: Arc<Plan>,
    agent: ureq::Agent,
    session: Option<Session>,
}

/// Returns the URL of an episode.
fn start(plan: &Plan, rng: &mut Rng) -> String {
    plan.config.url.replace("{}", &(rng.next_u32() >> 1).to_string())
}

impl From<Trouble> for EnvError {
    fn from(trouble: Trouble) -> Self {
        let (Trouble::Page(cause) | Trouble::Server(cause)) = trouble;
        Self { cause, may_repeat: true }
    }
}

impl BlockingEnv for Crawl {
    type Obs = f32;

    fn observation_space(&self) -> Space {
        let len = FEATURES * self.plan.config.links + GLOBALS;
        Space::vector(&vec![0.0; len], &vec![1.0; len])
    }

    fn action_space(&self) -> ActionSpace {
        ActionSpace::Discrete { n: self.plan.config.links as u32, masked: true }
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        self.session = None;
        let session = Session::begin(self.agent.clone(), &start(&self.plan, rng), &self.plan)?;
        if session.is_over(&self.plan) {
            let cause = format!("{} has no link to another page of its host, or is the goal", self.plan.config.url);
            return Err(EnvError { cause, may_repeat: false });
        }
        session.observe(&self.plan, obs);
        self.session = Some(session);
        Ok(())
    }

    fn step(&mut self, action: Action<'_>, _: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
        let session = self.session.as_mut().expect("a step follows a reset");
        let at = session.frontier.len().checked_sub(1 + action.discrete() as usize).expect("a legal action");
        let is_relevant = session.visit(at, &self.plan)?;
        session.observe(&self.plan, obs);
        let reward = if is_relevant { 1.0 } else { 0.0 };
        Ok(Step { reward, terminated: session.is_over(&self.plan), truncated: false })
    }

    fn mask(&self, mask: &mut [u8]) {
        let n = self.session.as_ref().map_or(0, |session| session.frontier.len());
        mask.iter_mut().enumerate().for_each(|(i, legal)| *legal = u8::from(i < n));
    }
}

/// Crawls without a policy for one episode; returns requests and relevant pages.
///
/// Any known link may be followed, not only the newest. The start, and random choices, are drawn from `seed`.
///
/// # Errors
/// The trouble of the server.
pub fn crawl(config: &CrawlConfig, order: Search, seed: u64) -> Result<(u32, u32), EnvError> {
    let plan = Plan::new(config);
    let mut rng = Rng::new(seed, 0, 0, Purpose::Reset);
    let mut session = Session::begin(plan.agent(), &start(&plan, &mut rng), &plan)?;
    while !session.is_over(&plan) {
        let at = match order {
            Search::Breadth => 0,
            Search::Random => rng.below(session.frontier.len() as u32) as usize,
            Search::Words => {
                let hints = session.frontier.iter().map(|page| session.graph[*page].hint).enumerate();
                hints.max_by(|(_, a), (_, b)| a.total_cmp(b)).map_or(0, |(at, _)| at)
            }
        };
        match session.visit(at, &plan) {
            Ok(_) | Err(Trouble::Page(_)) => {}
            Err(trouble) => return Err(trouble.into()),
        }
    }
    Ok((session.requests, session.found))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpListener;
    use std::sync::Mutex;
    use std::time::Instant;

    use super::*;
    use crate::sources::site::{Site, SiteConfig};

    #[test]
    fn links_are_resolved_and_stay_on_the_host() {
        let page = Address::parse("http://Example.org:80/a/b/c?q=1#part").unwrap();
        assert_eq!(page.url(), "http://example.org:80/a/b/c?q=1");
        for (link, url) in [
            ("d", Some("http://example.org:80/a/b/d")),
            ("../d?x=y:z#part", Some("http://example.org:80/a/d?x=y:z")),
            ("./../../../d/.", Some("http://example.org:80/d/")),
            ("/", Some("http://example.org:80/")),
            ("?q=2", Some("http://example.org:80/a/b/c?q=2")),
            ("//example.org:80/e", Some("http://example.org:80/e")),
            ("http://EXAMPLE.org:80/f", Some("http://example.org:80/f")),
            ("http://example.org:81/", None),
            ("http://example.org.evil.net:80/", None),
            ("http://example.org:80@evil.net/", None),
            ("//evil.net/", None),
            ("https://example.org:80/", None),
            ("file:///etc/passwd", None),
            ("javascript:alert(1)", None),
            ("mailto:a@example.org", None),
            ("\\\\evil.net\\", Some("http://example.org:80/a/b/\\\\evil.net\\")),
            ("#part", None),
            ("", None),
        ] {
            assert_eq!(page.join(link).map(|address| address.url()).as_deref(), url, "{link}");
        }
        assert_eq!(page.join(&"x".repeat(5000)), None);
    }

    /// Serves answers by path on one port, and returns its URL and what was asked for.
    fn serve(answers: &'static [(&str, &str)]) -> (String, Arc<Mutex<Vec<String>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (url, asked) = (format!("http://{}", listener.local_addr().unwrap()), Arc::<Mutex<Vec<String>>>::default());
        let told = asked.clone();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut request = [0; 4096];
                let n = stream.read(&mut request).unwrap();
                let path = String::from_utf8_lossy(&request[..n]).split(' ').nth(1).unwrap_or_default().to_owned();
                let answer = answers.iter().find(|(of, _)| *of == path).map_or("404 Not Found\r\n\r\n", |(_, answer)| answer);
                told.lock().unwrap().push(path);
                let _ = stream.write_all(format!("HTTP/1.1 {answer}").as_bytes());
            }
        });
        (url, asked)
    }

    #[test]
    fn loops_other_hosts_other_types_and_failing_pages_end_where_the_limits_are() {
        let (foreign, asked_there) = serve(&[]);
        let page = format!(
            "200 OK\r\nConnection: close\r\nContent-Type: text/html\r\n\r\n<a href=/loop>1</a><a href=/away>2</a><a href={foreign}/>3</a>\
             <a href=/picture>4</a><a href=/broken>5</a><a href=/gone>6</a><a href=/moved>reef</a><a href=/>7</a>"
        );
        let away = format!("302 Found\r\nLocation: {foreign}/\r\nConnection: close\r\n\r\n");
        let answers: Vec<(&str, &str)> = vec![
            ("/", page.leak()),
            ("/loop", "302 Found\r\nLocation: /loop\r\nConnection: close\r\n\r\n"),
            ("/away", away.leak()),
            ("/picture", "200 OK\r\nContent-Type: image/png\r\nConnection: close\r\n\r\nreef reef"),
            ("/broken", "500 Internal Server Error\r\nConnection: close\r\n\r\n"),
            ("/moved", "302 Found\r\nLocation: /reef\r\nConnection: close\r\n\r\n"),
            ("/reef", "200 OK\r\nConnection: close\r\n\r\nreef <a href=/moved>again</a>"),
        ];
        let (url, asked) = serve(answers.leak());
        let plan = Plan::new(&CrawlConfig { redirects: 3, page_retries: 1, topic: "reef".into(), ..CrawlConfig::default() });
        let mut session = Session::begin(plan.agent(), &format!("{url}/"), &plan).unwrap();
        assert_eq!(session.frontier.len(), 6, "the other host is no link");
        let mut visit = |path: &str| {
            let at = session.frontier.iter().position(|page| session.graph[*page].address.path == path).unwrap();
            let before = asked.lock().unwrap().len();
            let visited = session.visit(at, &plan).map_err(|trouble| EnvError::from(trouble).cause);
            (visited, asked.lock().unwrap().len() - before)
        };
        assert_eq!(visit("/loop"), (Ok(false), 4), "a request and three redirects");
        assert_eq!(visit("/away"), (Ok(false), 1));
        assert_eq!(visit("/picture"), (Ok(false), 1));
        let (failed, n) = visit("/broken");
        assert!(failed.unwrap_err().contains("500") && n == 1);
        assert_eq!(visit("/broken"), (Ok(false), 1), "retried once, then irrelevant");
        assert_eq!(visit("/gone"), (Ok(false), 1));
        assert_eq!(visit("/moved"), (Ok(true), 2));
        assert!(session.frontier.is_empty() && session.is_over(&plan), "a page found by a redirect is not visited again");
        assert_eq!((session.requests, session.found), (12, 2), "the start is relevant, too");
        assert!(asked_there.lock().unwrap().is_empty());
    }

    #[test]
    fn pages_without_end_and_pages_without_answer_take_their_limits() {
        let sites = SiteConfig { endless: 0.5, hangs: 0.5, pages: 100, ..SiteConfig::default() };
        let site = Site::start(sites, 0).unwrap();
        let config = CrawlConfig { url: format!("{}/1/", site.url()), page_ms: 100.0, requests: 40, ..CrawlConfig::default() };
        let begin = Instant::now();
        let started = (0..20).find_map(|seed| crawl(&config, Search::Random, seed).ok());
        let stats = site.stats();
        assert!(started.is_some() && stats["hangs"].as_u64() > Some(5) && stats["endless"].as_u64() > Some(2), "{stats}");
        assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    }

    #[test]
    fn texts_that_are_no_start_are_refused() {
        for (url, allowed) in [("http://localhost:1/{}/", true), ("https://a.org/", false), ("a.org", false), ("http://", false)]
        {
            assert_eq!(is_start(url), allowed, "{url}");
        }
        assert!(has_words("a") && !has_words(" ,"));
    }
}
