//! Figures of the documents, compared with the records they come from.
//!
//! A figure is a number with a unit of time, speed, memory or ratio, or any number of a column headed `figure` or `measured`.
//! `bench/figures.toml` names, for each block of a document (a row of a table, a paragraph, an item of a list), the rows of
//! records that hold its figures, or says why a figure has no record.

use std::collections::BTreeMap;
use std::iter::once;

/// Headings of columns whose numbers are figures without a unit, too.
const FIGURE_COLUMNS: [&str; 2] = ["figure", "measured"];

/// Units of figures, and what a number with the unit is multiplied by.
const UNITS: [(&str, f64); 19] = [
    ("million", 1e6),
    ("%", 1.0),
    ("times", 1.0),
    ("k", 1e3),
    ("M", 1e6),
    ("ns", 1e-9),
    ("us", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("second", 1.0),
    ("seconds", 1.0),
    ("min", 1.0),
    ("minutes", 1.0),
    ("hours", 1.0),
    ("cores", 1.0),
    ("MiB", 1.0),
    ("GiB", 1.0),
    ("GB", 1.0),
    ("env steps/s", 1.0),
];

/// Words between the numbers of a list, whose last one has the unit of all.
const BETWEEN: [&str; 8] = [", ", " and ", " or ", " to ", "; ", ", then ", " +- ", " instead of "];

/// Content of `bench/figures.toml`: sources by words of a block, by document.
///
/// A source is `RECORD.md: WORDS / WORDS` (words of a row, or of the headings above it), `FIGURE / FIGURE: REASON` or
/// `the rest: REASON`. No words mean every block of the document.
pub(crate) type Sources = BTreeMap<String, BTreeMap<String, Vec<String>>>;

/// Row of a table, paragraph or item of a list.
#[derive(Debug)]
struct Block {
    line: usize,
    /// Headings of the sections around it, and of the columns.
    above: String,
    /// Heading of each column.
    columns: Vec<String>,
    text: String,
}

/// Number in a text.
#[derive(Clone, Debug, PartialEq)]
struct Number {
    /// First byte, and the one after the last, without the unit.
    place: (usize, usize),
    /// Digits as they are written.
    digits: String,
    unit: Option<&'static str>,
    /// True in brackets, where records have minimum and maximum.
    in_brackets: bool,
}

impl Number {
    fn scale(&self) -> f64 {
        UNITS.iter().find(|(unit, _)| Some(*unit) == self.unit).map_or(1.0, |(_, scale)| *scale)
    }

    fn value(&self) -> f64 {
        self.digits.replace(',', "").parse::<f64>().unwrap_or(f64::NAN) * self.scale()
    }

    /// True if `other` of a record is this number when it is rounded to as many digits.
    ///
    /// A bound in brackets is not a median.
    fn is_rounded(&self, other: &Self) -> bool {
        if other.in_brackets && !self.in_brackets {
            return false;
        }
        let decimals = self.digits.split_once('.').map_or(0, |(_, fraction)| fraction.len());
        (self.value() - other.value()).abs() <= 0.500_001 * self.scale() * 10f64.powi(-(decimals as i32))
    }

    fn written(&self) -> String {
        match self.unit {
            Some("%") => format!("{}%", self.digits),
            Some(unit) => format!("{} {unit}", self.digits),
            None => self.digits.clone(),
        }
    }
}

/// Problems of a document with its sources; `read` returns a record's text.
pub(crate) fn check(path: &str, document: &str, sources: &Sources, read: &dyn Fn(&str) -> String) -> Vec<String> {
    let none = BTreeMap::new();
    let listed = sources.get(path).unwrap_or(&none);
    let blocks = blocks(document);
    let mut problems = Vec::new();
    for words in listed.keys().filter(|words| !words.is_empty()) {
        let n = blocks.iter().filter(|block| block.text.contains(words)).count();
        if n != 1 {
            problems.push(format!("bench/figures.toml, {path}: {n} blocks have the words \"{words}\""));
        }
    }
    for block in &blocks {
        let figures = figures(block);
        let named = listed.iter().filter(|(words, _)| block.text.contains(*words)).flat_map(|(_, sources)| sources);
        let named: Vec<(&str, Result<Vec<Number>, String>)> =
            named.map(|source| (source.as_str(), numbers_of(source, read))).collect();
        let is_in = |figure: &Number, (source, numbers): &(&str, Result<Vec<Number>, String>)| match numbers {
            Ok(numbers) => numbers.iter().any(|number| figure.is_rounded(number)),
            Err(_) => source.split_once(": ").is_some_and(|(listed, _)| listed.split(" / ").any(|one| one == figure.written())),
        };
        let has_rest = named.iter().any(|(source, _)| source.starts_with("the rest: "));
        for figure in figures.iter().filter(|figure| !has_rest && !named.iter().any(|source| is_in(figure, source))) {
            let of = if named.is_empty() {
                "no source; name one in bench/figures.toml".into()
            } else {
                format!("not in {}", named.iter().map(|(source, _)| *source).collect::<Vec<_>>().join("; "))
            };
            problems.push(format!("{path}:{}: {}: {of}", block.line, figure.written()));
        }
        for source in &named {
            let (words, numbers) = source;
            let problem = match numbers {
                Err(problem) if !problem.is_empty() => problem,
                _ if words.starts_with("the rest: ") || figures.iter().any(|figure| is_in(figure, source)) => continue,
                _ => "no figure comes from it",
            };
            problems.push(format!("bench/figures.toml, {path}:{}: \"{words}\": {problem}", block.line));
        }
    }
    problems
}

/// Numbers in the block of a record that `source` names.
///
/// # Errors
/// Problem with the record's name; empty if `source` names no record.
fn numbers_of(source: &str, read: &dyn Fn(&str) -> String) -> Result<Vec<Number>, String> {
    let Some((record, words)) = source.split_once(".md: ") else { return Err(String::new()) };
    let record = read(&format!("bench/{record}.md"));
    let has_words = |block: &&Block| words.split(" / ").all(|words| block.above.contains(words) || block.text.contains(words));
    let blocks = blocks(&record);
    let mut found = blocks.iter().filter(has_words);
    match (found.next(), found.count()) {
        (Some(block), 0) => Ok(numbers(&format!("{}\n{}", block.above, block.text))),
        (None, _) => Err("the record has no such block".into()),
        (_, more) => Err(format!("the record has {} such blocks", more + 1)),
    }
}

/// Blocks of a Markdown text, code left out.
fn blocks(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut titles, mut columns) = (Vec::<&str>::new(), Vec::new());
    let (mut in_code, mut in_block) = (false, false);
    for (i, line) in text.lines().enumerate() {
        let is_row = line.starts_with('|');
        if line.starts_with("```") {
            in_code = !in_code;
        } else if in_code || line.trim().is_empty() {
        } else if line.starts_with('#') {
            let depth = line.bytes().take_while(|byte| *byte == b'#').count();
            titles.truncate(depth - 1);
            titles.push(line);
        } else if is_row && columns.is_empty() {
            columns = cells(line).map(|(_, cell)| cell.trim().to_string()).collect();
            continue;
        } else if line.starts_with("|---") {
            continue;
        } else if in_block && !is_row && !line.starts_with("- ") {
            let block = blocks.last_mut().expect("a block that goes on");
            block.text = format!("{} {}", block.text, line.trim());
            continue;
        } else {
            let above = titles.iter().copied().chain(columns.iter().map(String::as_str)).collect::<Vec<_>>().join("\n");
            blocks.push(Block { line: i + 1, above, columns: columns.clone(), text: line.into() });
            in_block = !is_row;
            continue;
        }
        in_block = false;
        if !is_row {
            columns.clear();
        }
    }
    blocks
}

/// Cells of a row with the places where they begin.
fn cells(row: &str) -> impl Iterator<Item = (usize, &str)> {
    let ends = row.match_indices('|').map(|(i, _)| i);
    ends.clone().zip(ends.skip(1)).map(|(begin, end)| (begin + 1, &row[begin + 1..end]))
}

/// Figures of a block.
fn figures(block: &Block) -> Vec<Number> {
    let text = prose(&block.text);
    let column = |place: usize| cells(&text).take_while(|(begin, _)| *begin <= place).count();
    let is_figure = |number: &Number| {
        let column = column(number.place.0).checked_sub(1).and_then(|column| block.columns.get(column));
        number.unit.is_some() || column.is_some_and(|column| FIGURE_COLUMNS.contains(&column.as_str()))
    };
    numbers(&text).into_iter().filter(is_figure).collect()
}

/// The text without code and without targets of links.
fn prose(text: &str) -> String {
    let text: String = text.split('`').step_by(2).collect::<Vec<_>>().join("code");
    let mut links = text.split("](");
    let first = links.next().unwrap_or_default();
    once(first).chain(links.map(|rest| rest.split_once(')').map_or(rest, |(_, rest)| rest))).collect::<Vec<_>>().join("]")
}

/// Numbers of a text with their units.
///
/// Parts of names, versions and sizes such as 12 x 12 are left out.
fn numbers(text: &str) -> Vec<Number> {
    let mut numbers: Vec<Number> = Vec::new();
    let mut end = 0;
    while let Some(begin) = text[end..].find(|c: char| c.is_ascii_digit()).map(|i| end + i) {
        let length = text[begin..].find(|c: char| !c.is_ascii_digit() && c != '.' && c != ',').unwrap_or(text.len() - begin);
        let digits = text[begin..begin + length].trim_end_matches(['.', ',']);
        end = begin + digits.len();
        let (before, after) = (&text[..begin], &text[end..]);
        let sign = before.strip_suffix('-').filter(|before| before.is_empty() || before.ends_with([' ', '(', '|']));
        let word = |c: char| c.is_alphanumeric() || "_-.^/".contains(c);
        let is_name = sign.unwrap_or(before).ends_with(word)
            || after.starts_with(|c: char| c.is_alphanumeric() || "_-/".contains(c))
            || before.ends_with(" x ")
            || after.starts_with(" x ")
            || digits.matches('.').count() > 1
            || digits.split(',').skip(1).any(|part| part.split('.').next().is_none_or(|part| part.len() != 3));
        if is_name {
            let rest = after.find(|c: char| !word(c)).unwrap_or(after.len());
            end += rest;
            continue;
        }
        let fits = |unit: &str| {
            let rest = after.strip_prefix(if unit == "%" { "" } else { " " }).and_then(|rest| rest.strip_prefix(unit));
            rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '-'))
        };
        let unit = UNITS.into_iter().map(|(unit, _)| unit).find(|unit| fits(unit));
        let in_brackets = before.matches('(').count() > before.matches(')').count();
        numbers.push(Number { place: (begin, end), digits: digits.into(), unit, in_brackets });
    }
    for i in (1..numbers.len()).rev() {
        if numbers[i - 1].unit.is_none() && BETWEEN.contains(&&text[numbers[i - 1].place.1..numbers[i].place.0]) {
            numbers[i - 1].unit = numbers[i].unit;
        }
    }
    // A range in brackets has the unit of the figure before.
    for i in 1..numbers.len().saturating_sub(1) {
        let ((begin, end), next) = (numbers[i].place, numbers[i + 1].place);
        let is_range = text[..begin].ends_with('(') && &text[end..next.0] == " to " && text[next.1..].starts_with(')');
        if is_range && numbers[i + 1].unit.is_none() {
            numbers[i].unit = numbers[i - 1].unit;
            numbers[i + 1].unit = numbers[i - 1].unit;
        }
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str = "# Cost\n\nThe machine has 24 GiB.\n\n## cartpole\n\n| N | all | each |\n|---|---|---|\n| 1 | 86.7 ns | 86.7 ns |\n\
                          | 1024 | 9.35 us (9.33 us to 9.56 us) | 9.1 ns |\n\n## snake\n\n| N | all | each |\n|---|---|---|\n| 1024 | 53.84 us | 52.6 ns |\n";
    const SOURCES: &str = "[\"a.md\"]\n\"CartPole:\" = [\"growth.md: cartpole / | 1 |\", \"growth.md: cartpole / | 1024 |\"]\n\
                           \"A call\" = [\"6 seconds: a bound by design\"]\n";
    const PAGE: &str = "# Page\n\nCartPole: 87 ns a step for one,\n9.1 ns each for 1,024.\n\n- A call\n  ends after 6 seconds.\n";

    fn found(page: &str, sources: &str, record: &str) -> Vec<String> {
        let sources: Sources = toml::from_str(sources).unwrap();
        check("a.md", page, &sources, &|file| if file == "bench/growth.md" { record.into() } else { String::new() })
    }

    #[test]
    fn a_figure_that_changes_in_the_document_or_in_its_record_is_found() {
        assert!(found(PAGE, SOURCES, RECORD).is_empty(), "{:?}", found(PAGE, SOURCES, RECORD));
        let changed = found(&PAGE.replace("9.1 ns", "4.2 ns"), SOURCES, RECORD);
        assert_eq!(changed[0], "a.md:3: 4.2 ns: not in growth.md: cartpole / | 1 |; growth.md: cartpole / | 1024 |");
        assert!(!found(&PAGE.replace("9.1 ns", "9.1 us"), SOURCES, RECORD).is_empty(), "another unit");
        assert!(!found(&PAGE.replace("9.1 ns", "52.6 ns"), SOURCES, RECORD).is_empty(), "a figure of another row");
        assert!(!found(PAGE, SOURCES, &RECORD.replace("9.1 ns", "9.2 ns")).is_empty(), "the record is measured again");
        assert!(!found(PAGE, SOURCES, &RECORD.replace("86.7 ns", "88.7 ns (86.7 ns to 90.2 ns)")).is_empty(), "a minimum");
        assert!(!found(PAGE, SOURCES, &RECORD.replace("| 1024 |", "| 2048 |")).is_empty(), "the row is gone");
    }

    #[test]
    fn a_figure_without_a_source_and_a_source_without_a_figure_are_found() {
        let page = format!("{PAGE}\nIt takes 3% of the time.\n");
        assert_eq!(found(&page, SOURCES, RECORD), ["a.md:9: 3%: no source; name one in bench/figures.toml"]);
        assert!(found(&page, &format!("{SOURCES}\"\" = [\"the rest: bounds by design\"]\n"), RECORD).is_empty());
        assert!(found(&page, &format!("{SOURCES}\"It takes\" = [\"the rest: by hand\"]\n"), RECORD).is_empty());
        assert_eq!(found(&PAGE.replace("6 seconds", "7 seconds"), SOURCES, RECORD).len(), 2, "the bound changes");
        assert_eq!(found(&PAGE.replace("A call", "Call"), SOURCES, RECORD).len(), 2, "the words are gone");
        let unused = SOURCES.replace("[\"6 seconds", "[\"growth.md: The machine\", \"6 seconds");
        assert_eq!(
            found(PAGE, &unused, RECORD),
            ["bench/figures.toml, a.md:6: \"growth.md: The machine\": no figure comes from it"]
        );
        let twice = SOURCES.replace("growth.md: cartpole / | 1024 |", "growth.md: | 1024 |");
        assert!(found(PAGE, &twice, RECORD).iter().any(|problem| problem.ends_with("the record has 2 such blocks")));
    }

    #[test]
    fn numbers_have_the_unit_of_their_list_or_range_and_names_are_none() {
        let written = |text: &str| numbers(&prose(text)).iter().map(Number::written).collect::<Vec<_>>();
        assert_eq!(written("4.5, 8.2 and 8.9 k samples/s: 1.4 times"), ["4.5 k", "8.2 k", "8.9 k", "1.4 times"]);
        assert_eq!(written("260 M env steps/s (128 to 293)"), ["260 M", "128 M", "293 M"]);
        assert_eq!(written("0.21 s (0.06 to 0.35 s), -87 +- 3"), ["0.21 s", "0.06 s", "0.35 s", "87", "3"]);
        assert_eq!(written("64-64 on 84 x 84 x 4, v1.0.15, Box2D, `50 ms`, [98.7%](b-5.md), 1,024"), ["98.7%", "1,024"]);
    }

    #[test]
    fn numbers_of_a_column_of_figures_need_no_unit() {
        let rows = blocks("| what | figure |\n|---|---|\n| after 2 steps | 25 and 28 |\n");
        let written: Vec<String> = figures(&rows[0]).iter().map(Number::written).collect();
        assert_eq!(written, ["25", "28"]);
    }
}
