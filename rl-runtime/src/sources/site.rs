//! A website to crawl: `rl site`.
//!
//! Pages are functions of the seed. `/N/` is the home page of site N, `/N/P` its page P; every N is another site. A page is on
//! one of the topics, uses words of it, and links mostly to pages of the same topic. The words of a link hint at the topic of its
//! target. `/stats` tells the counts.
//!
//! Answers may be late, and a share of them broken: errors and hangs are drawn for each request; redirects and malformed or
//! endless content are fixed for each page.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rl_envs::{Purpose, Rng, rng};
use serde_json::{Value, json};

use crate::thread::spawn;

pub use crate::sources::latency::Distribution;

/// Topics, with the words of each.
const TOPICS: [&str; 16] = [
    "harbour anchor sail reef tide wave lagoon sailor",
    "summit glacier ridge climber avalanche slope cliff valley",
    "gambit bishop checkmate rook castling pawn endgame opening",
    "flour yeast dough oven crust loaf baker sourdough",
    "violin melody rhythm chorus tempo orchestra cello sonata",
    "seed compost orchard pruning hedge tulip soil greenhouse",
    "comet telescope galaxy orbit nebula eclipse meteor planet",
    "locomotive carriage signal junction platform railway tunnel timetable",
    "saddle stable mare gallop bridle hoof rein paddock",
    "canvas pigment easel portrait sketch fresco palette brush",
    "senate ballot treaty minister parliament statute verdict council",
    "kernel compiler pointer thread cache opcode linker register",
    "fever clinic vaccine surgeon pulse diagnosis antibody nurse",
    "goalkeeper striker penalty referee stadium corner league tackle",
    "pyramid pharaoh papyrus temple dynasty obelisk tomb scribe",
    "espresso roast crema barista grinder arabica filter mocha",
];
/// Words of no topic.
const FILLER: &str = "about after again all also another any around because before between both but day each even every few first for \
                      from great has have her here him house how into just know large last left like little long made many may more \
                      most much must name never new next night now old once only other our over part people place right same see \
                      should show side small some still such take tell than that their then there these they thing think this those";
/// Lists of words.
struct Vocabulary {
    topics: [Vec<&'static str>; TOPICS.len()],
    filler: Vec<&'static str>,
}

static VOCABULARY: LazyLock<Vocabulary> = LazyLock::new(|| Vocabulary {
    topics: TOPICS.map(|words| words.split_whitespace().collect()),
    filler: FILLER.split_whitespace().collect(),
});

/// Words of a page.
const PAGE_WORDS: usize = 200;
/// Words of a link.
const LINK_WORDS: usize = 3;
/// Share of a page's words that are of its topic.
const ON_TOPIC: f32 = 0.3;
/// Share of a link's words that are of its target's topic.
const HINT: f32 = 0.4;
/// Share of words that are of any topic.
const NOISE: f32 = 0.05;
/// Share of links to pages of the same topic.
const LOCALITY: f32 = 0.5;
/// Time that a hanging request takes until its connection is closed.
const HANG: Duration = Duration::from_secs(10);
/// Longest request.
const MAX_REQUEST: u64 = 8192;

/// Shape and behaviour of the sites.
#[derive(Clone, Debug)]
pub struct SiteConfig {
    /// Seed of pages, delays and faults.
    pub seed: u64,
    /// Pages of a site.
    pub pages: u32,
    /// Links of a page.
    pub links: u32,
    /// Topics, at most [`SiteConfig::MAX_TOPICS`].
    pub topics: u32,
    /// Distribution of delays.
    pub latency: Distribution,
    /// Mean delay of an answer.
    pub mean: Duration,
    /// Share of requests that are answered by an error.
    pub errors: f32,
    /// Share of requests that are not answered.
    pub hangs: f32,
    /// Share of pages that redirect to another.
    pub redirects: f32,
    /// Share of pages of malformed HTML.
    pub malformed: f32,
    /// Share of pages that never end.
    pub endless: f32,
}

impl Default for SiteConfig {
    fn default() -> Self {
        Self {
            seed: 0,
            pages: 2000,
            links: 12,
            topics: Self::MAX_TOPICS,
            latency: Distribution::Fixed,
            mean: Duration::ZERO,
            errors: 0.0,
            hangs: 0.0,
            redirects: 0.0,
            malformed: 0.0,
            endless: 0.0,
        }
    }
}

/// Kind of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageKind {
    Plain,
    Redirect,
    Malformed,
    Endless,
}

/// Purpose of a draw of random numbers.
#[derive(Clone, Copy)]
enum Draw {
    Topic,
    Text,
    Links,
    Kind,
}

impl SiteConfig {
    /// Number of topics that there are words for.
    pub const MAX_TOPICS: u32 = TOPICS.len() as u32;

    fn rng(&self, site: u32, page: u32, draw: Draw) -> Rng {
        let [a, b, ..] = rng::block(self.seed, site, 0, Purpose::Reset, 0);
        Rng::new(u64::from(a) << 32 | u64::from(b), page, draw as u64, Purpose::Reset)
    }

    fn topic(&self, site: u32, page: u32) -> u32 {
        self.rng(site, page, Draw::Topic).below(self.topics)
    }

    fn kind(&self, site: u32, page: u32) -> PageKind {
        let drawn = self.rng(site, page, Draw::Kind).uniform();
        let kinds =
            [(self.redirects, PageKind::Redirect), (self.malformed, PageKind::Malformed), (self.endless, PageKind::Endless)];
        let mut below = 0.0;
        let found = kinds.into_iter().find(|(share, _)| {
            below += share;
            drawn < below
        });
        // Nothing is found if the home page is broken.
        found.filter(|_| page > 0).map_or(PageKind::Plain, |(_, kind)| kind)
    }

    /// Draws a page to link to.
    fn target(&self, site: u32, page: u32, rng: &mut Rng) -> u32 {
        let near = rng.uniform() < LOCALITY;
        let topic = self.topic(site, page);
        let mut target = rng.below(self.pages);
        for _ in 0..8 * self.topics {
            if !near || self.topic(site, target) == topic {
                break;
            }
            target = rng.below(self.pages);
        }
        target
    }

    /// Appends `n` words, of which the share `of_topic` is of `topic`.
    fn write_words(&self, html: &mut String, n: usize, topic: u32, of_topic: f32, rng: &mut Rng) {
        let vocabulary = &*VOCABULARY;
        for i in 0..n {
            let drawn = rng.uniform();
            let words = match () {
                () if drawn < of_topic => &vocabulary.topics[topic as usize],
                () if drawn < of_topic + NOISE => &vocabulary.topics[rng.below(self.topics) as usize],
                () => &vocabulary.filler,
            };
            html.push_str(if i == 0 { "" } else { " " });
            html.push_str(words[rng.below(words.len() as u32) as usize]);
        }
    }

    /// Returns a page of HTML.
    fn page(&self, site: u32, page: u32) -> String {
        let malformed = self.kind(site, page) == PageKind::Malformed;
        let topic = self.topic(site, page);
        let mut html =
            format!("<!doctype html><html><head><title>Page {page}</title></head><body><a href=\"/{site}/\">home</a><p>");
        self.write_words(&mut html, PAGE_WORDS, topic, ON_TOPIC, &mut self.rng(site, page, Draw::Text));
        html.push_str(if malformed { "<p></b>&bogus; <<i <!-- > <table><p>" } else { "</p><ul>" });
        let mut rng = self.rng(site, page, Draw::Links);
        for _ in 0..self.links {
            let target = self.target(site, page, &mut rng);
            let _ = match malformed {
                false => write!(html, "<li><a href=\"/{site}/{target}\">"),
                true => write!(html, "<li><a href=/{site}/{target} =>"),
            };
            self.write_words(&mut html, LINK_WORDS, self.topic(site, target), HINT, &mut rng);
            html.push_str(if malformed { "</li>" } else { "</a></li>" });
        }
        html.push_str(if malformed { "<a href=\"/" } else { "</ul></body></html>" });
        html
    }
}

/// Counts of a server.
#[derive(Debug, Default)]
struct Counts {
    requests: AtomicU64,
    errors: AtomicU64,
    hangs: AtomicU64,
    redirects: AtomicU64,
    malformed: AtomicU64,
    endless: AtomicU64,
    connections: AtomicU64,
    waited_ns: AtomicU64,
}

/// A server that runs until the process ends.
#[derive(Debug)]
pub struct Site {
    address: SocketAddr,
    counts: Arc<Counts>,
}

fn add(count: &AtomicU64, n: u64) -> u64 {
    count.fetch_add(n, Ordering::Relaxed)
}

impl Counts {
    fn json(&self) -> Value {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        json!({
            "requests": of(&self.requests), "errors": of(&self.errors), "hangs": of(&self.hangs), "redirects": of(&self.redirects),
            "malformed": of(&self.malformed), "endless": of(&self.endless), "connections": of(&self.connections),
            "waited_s": of(&self.waited_ns) as f64 * 1e-9,
        })
    }
}

impl Site {
    /// Starts to serve on this host alone; port 0 chooses a free one.
    ///
    /// # Errors
    /// The error of the system if the port cannot be bound.
    pub fn start(config: SiteConfig, port: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        let (address, counts, config) = (listener.local_addr()?, Arc::<Counts>::default(), Arc::new(config));
        let shared = counts.clone();
        let accept = move || {
            for stream in listener.incoming().flatten() {
                let (config, counts) = (config.clone(), shared.clone());
                add(&counts.connections, 1);
                // A client that goes away ends its connection, and nothing else.
                let _ = spawn("connection", move || serve(&stream, &config, &counts).unwrap_or_default());
            }
        };
        spawn("site", accept).map_err(io::Error::other)?;
        Ok(Self { address, counts })
    }

    /// Returns the address, without a path.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the counts so far.
    ///
    /// Requests, faults by kind, connections, and `waited_s`, the sum of the delays in seconds.
    #[must_use]
    pub fn stats(&self) -> Value {
        self.counts.json()
    }
}

/// Answers the requests of a connection.
fn serve(stream: &TcpStream, config: &SiteConfig, counts: &Counts) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(HANG))?;
    let (mut requests, mut line) = (BufReader::new(stream), String::new());
    loop {
        let mut request = requests.by_ref().take(MAX_REQUEST);
        line.clear();
        request.read_line(&mut line)?;
        let mut words = line.split(' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default().to_owned());
        let known = method == "GET";
        let mut header = String::new();
        while request.read_line(&mut header)? > 2 {
            header.clear();
        }
        if header.is_empty() {
            return Ok(()); // closed, or too long
        }
        let answered =
            if known { answer(stream, &path, config, counts)? } else { send(stream, "405 Method Not Allowed", "", b"")? };
        if !answered {
            return Ok(());
        }
    }
}

/// Answers a request; returns false if the connection must be closed.
fn answer(stream: &TcpStream, path: &str, config: &SiteConfig, counts: &Counts) -> io::Result<bool> {
    if path == "/stats" {
        return send(stream, "200 OK", "Content-Type: application/json\r\n", counts.json().to_string().as_bytes());
    }
    let n = add(&counts.requests, 1);
    let mut rng = Rng::new(config.seed, 0, n, Purpose::Step);
    let delay = config.latency.at(rng.uniform(), config.mean);
    if !delay.is_zero() {
        std::thread::sleep(delay);
        add(&counts.waited_ns, delay.as_nanos() as u64);
    }
    let drawn = rng.uniform();
    if drawn < config.errors {
        add(&counts.errors, 1);
        return send(stream, "500 Internal Server Error", "", b"it failed, as it was asked to");
    }
    if drawn < config.errors + config.hangs {
        add(&counts.hangs, 1);
        std::thread::sleep(HANG);
        return Ok(false);
    }
    let mut parts = path.trim_start_matches('/').splitn(2, '/');
    let site = parts.next().and_then(|site| site.parse().ok());
    let page = parts.next().and_then(|page| if page.is_empty() { Some(0) } else { page.parse().ok() });
    let (Some(site), Some(page)) = (site, page.filter(|page| *page < config.pages)) else {
        return send(stream, "404 Not Found", "", b"there is no such page");
    };
    const HTML: &str = "Content-Type: text/html; charset=utf-8\r\n";
    match config.kind(site, page) {
        PageKind::Plain => send(stream, "200 OK", HTML, config.page(site, page).as_bytes()),
        PageKind::Malformed => {
            add(&counts.malformed, 1);
            let mut bytes = config.page(site, page).into_bytes();
            bytes.insert(200, 0xFF); // no UTF-8
            send(stream, "200 OK", HTML, &bytes)
        }
        PageKind::Redirect => {
            add(&counts.redirects, 1);
            let target = config.target(site, page, &mut config.rng(site, page, Draw::Links));
            send(stream, "302 Found", &format!("Location: /{site}/{target}\r\n"), b"")
        }
        PageKind::Endless => {
            add(&counts.endless, 1);
            let mut out = stream;
            out.write_all(format!("HTTP/1.1 200 OK\r\n{HTML}Transfer-Encoding: chunked\r\n\r\n").as_bytes())?;
            let words = format!("{FILLER} ").repeat(8);
            let chunk = format!("{:x}\r\n{words}\r\n", words.len());
            loop {
                out.write_all(chunk.as_bytes())?;
            }
        }
    }
}

fn send(mut stream: &TcpStream, status: &str, headers: &str, body: &[u8]) -> io::Result<bool> {
    let mut bytes = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n", body.len()).into_bytes();
    bytes.extend_from_slice(body);
    stream.write_all(&bytes)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(site: &Site, path: &str) -> String {
        let mut stream = TcpStream::connect(site.address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let mut answer = Vec::new();
        let _ = stream.take(100_000).read_to_end(&mut answer); // ends at the limit, or when nothing more comes
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[test]
    fn a_seed_gives_the_same_pages_and_every_site_is_another() {
        let (one, other) = (SiteConfig::default(), SiteConfig { seed: 1, ..SiteConfig::default() });
        assert_eq!(one.page(3, 5), SiteConfig::default().page(3, 5));
        assert!(one.page(3, 5) != one.page(4, 5) && one.page(3, 5) != other.page(3, 5) && one.page(3, 5) != one.page(3, 6));
    }

    #[test]
    fn pages_use_words_of_their_topic_and_half_of_their_links_stay_on_it() {
        let config = SiteConfig::default();
        let (mut near, mut all) = (0, 0);
        for page in 0..200 {
            let topic = config.topic(7, page);
            let html = config.page(7, page);
            let hits =
                html.split([' ', '<', '>']).filter(|word| TOPICS[topic as usize].split(' ').any(|own| own == *word)).count();
            assert!((35..110).contains(&hits), "page {page}: {hits} of {PAGE_WORDS}");
            let mut rng = config.rng(7, page, Draw::Links);
            for _ in 0..12 {
                near += u32::from(config.topic(7, config.target(7, page, &mut rng)) == topic);
                all += 1;
            }
        }
        // Half stay on purpose, one in 16 of the others by chance.
        assert!((f64::from(near) / f64::from(all) - 0.53).abs() < 0.03, "{near} of {all}");
    }

    #[test]
    fn every_kind_of_answer_is_counted() {
        let kinds = SiteConfig { redirects: 0.2, malformed: 0.2, endless: 0.2, pages: 60, ..SiteConfig::default() };
        let site = Site::start(kinds.clone(), 0).unwrap();
        assert!(get(&site, "/1/").contains("<title>Page 0</title>"));
        let page = |kind| format!("/1/{}", (1..60).find(|page| kinds.kind(1, *page) == kind).unwrap());
        assert!(get(&site, &page(PageKind::Redirect)).contains("302 Found\r\nLocation: /1/"));
        assert!(get(&site, &page(PageKind::Malformed)).contains("&bogus;"));
        assert_eq!(get(&site, &page(PageKind::Endless)).len(), 100_000);
        assert!(get(&site, "/1/60").contains("404") && get(&site, "/x/1").contains("404") && get(&site, "/").contains("404"));
        let stats = site.stats();
        for (name, n) in [("requests", 7), ("redirects", 1), ("malformed", 1), ("endless", 1), ("errors", 0), ("connections", 7)]
        {
            assert_eq!(stats[name], n, "{name}: {stats}");
        }
        let failing = Site::start(SiteConfig { errors: 1.0, ..SiteConfig::default() }, 0).unwrap();
        assert!(get(&failing, "/1/").contains("500") && failing.stats()["errors"] == 1);
        let silent = Site::start(SiteConfig { hangs: 1.0, ..SiteConfig::default() }, 0).unwrap();
        assert!(get(&silent, "/1/").is_empty() && silent.stats()["hangs"] == 1);
    }
}
