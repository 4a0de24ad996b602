//! Words and links of a page of HTML, which may be malformed.

use std::cell::RefCell;
use std::collections::HashSet;

use html5ever::TokenizerResult;
use html5ever::tokenizer::states::RawKind;
use html5ever::tokenizer::{BufferQueue, Tag, TagKind, Token, TokenSink, TokenSinkResult, Tokenizer, TokenizerOpts};

/// Links of a page that are looked at.
const MAX_LINKS: usize = 512;

/// Words of a text.
pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty())
}

/// A page as it was parsed.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Parsed {
    /// Share of the words that are of the topic.
    pub(super) relevance: f32,
    /// Targets and the share of each link's words that are of the topic.
    pub(super) links: Vec<(String, f32)>,
}

/// Words, and those among them that are of the topic.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    words: u32,
    hits: u32,
}

impl Count {
    fn add(&mut self, text: &str, topic: &HashSet<String>) {
        for word in words(text) {
            self.words += 1;
            self.hits += u32::from(topic.contains(&word.to_lowercase()));
        }
    }

    fn share(self) -> f32 {
        self.hits as f32 / self.words.max(1) as f32
    }
}

/// Content of a page that has been read so far.
#[derive(Default)]
struct Read {
    page: Count,
    links: Vec<(String, f32)>,
    /// Target and words of the link that is open.
    link: Option<(String, Count)>,
    /// True in an element whose text is no text of the page.
    skips: bool,
}

/// Reader of HTML's tokens, as browsers split it. A tree is not needed.
struct Reader<'a> {
    topic: &'a HashSet<String>,
    read: RefCell<Read>,
}

impl Read {
    /// Ends the link that is open.
    fn close(&mut self) {
        self.links.extend(self.link.take().map(|(target, count)| (target, count.share())));
    }

    fn open(&mut self, tag: &Tag) {
        if &*tag.name == "a" {
            self.close();
            let href = tag.attrs.iter().find(|attribute| &*attribute.name.local == "href");
            let href = href.filter(|_| self.links.len() < MAX_LINKS);
            self.link = href.map(|href| (href.value.to_string(), Count::default()));
        }
    }
}

impl TokenSink for Reader<'_> {
    type Handle = ();

    fn process_token(&self, token: Token, _line: u64) -> TokenSinkResult<()> {
        let read = &mut *self.read.borrow_mut();
        match token {
            Token::CharacterTokens(text) if !read.skips => {
                read.page.add(&text, self.topic);
                if let Some((_, count)) = &mut read.link {
                    count.add(&text, self.topic);
                }
            }
            Token::TagToken(tag) if tag.kind == TagKind::StartTag => {
                read.open(&tag);
                // Text of these elements has no tags.
                let raw = match &*tag.name {
                    "script" => RawKind::ScriptData,
                    "style" | "noscript" | "iframe" => RawKind::Rawtext,
                    "title" | "textarea" => RawKind::Rcdata,
                    _ => return TokenSinkResult::Continue,
                };
                read.skips = raw != RawKind::Rcdata;
                return TokenSinkResult::RawData(raw);
            }
            Token::TagToken(tag) => {
                read.skips = false;
                if &*tag.name == "a" {
                    read.close();
                }
            }
            _ => {}
        }
        TokenSinkResult::Continue
    }
}

/// Reads relevance and links of HTML, which may be malformed.
pub(super) fn parse(html: &str, topic: &HashSet<String>) -> Parsed {
    let tokenizer = Tokenizer::new(Reader { topic, read: RefCell::default() }, TokenizerOpts::default());
    let input = BufferQueue::default();
    input.push_back(html.into());
    while let TokenizerResult::Script(()) = tokenizer.feed(&input) {}
    tokenizer.end();
    let mut read = tokenizer.sink.read.take();
    read.close();
    Parsed { relevance: read.page.share(), links: read.links }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_counted_and_links_read_even_in_malformed_html() {
        let topic = HashSet::from(["reef".into(), "tide".into()]);
        let html = "<title>Reef</title><script>reef reef</script><p>The Tide, and<a href=/x>a reef<a href='/y'>more</p><b>x <<i";
        // Words: Reef, The, Tide, and, a, reef, more, x; the last tag is never complete.
        let links = vec![("/x".into(), 0.5), ("/y".into(), 0.0)];
        assert_eq!(parse(html, &topic), Parsed { relevance: 3.0 / 8.0, links });
        assert_eq!(parse("", &topic), Parsed::default());
        let deep = "<div>".repeat(100_000) + "<a href=/z>tide</a>";
        assert_eq!(parse(&deep, &topic).links, [("/z".into(), 1.0)], "nested deeply");
    }
}
