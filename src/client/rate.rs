//! How fast a transfer may go: a fixed rate, or a timetable of the week. One bucket is shared by all streams of a transfer.
//!
//! A timetable is text, one rule a line, the first rule that fits wins, `*` at the end catches the rest:
//!
//! ```text
//! mon-fri 08:00-18:00  2M      # office hours
//! sat,sun 00:00-24:00  off     # nothing at all: wait
//! *                    none    # no limit
//! ```
//!
//! Rates are bytes a second with `k`, `M`, `G` (powers of 1,000) or `Ki`, `Mi`, `Gi`. Times are the machine's local time.
//!
//! The rate is looked up anew for each slice, so a timetable takes effect in the middle of a transfer too. There is no burst: time in
//! which nothing was sent is not saved up.

use super::transfer::Pace;
use crate::clock::Clock;
use futures::FutureExt;
use futures::future::BoxFuture;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The limit of one transfer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Limit {
    #[default]
    None,
    /// Bytes a second.
    Fixed(u64),
    Schedule(Timetable),
}

/// Rates by weekday and time of day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timetable {
    rules: Vec<Rule>,
}

/// A rule never crosses midnight: a night is two rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rule {
    /// Bit 0 is Monday.
    days: u8,
    /// Minutes since midnight, `from <= now < to`.
    from: u16,
    to: u16,
    /// Bytes a second; 0 = stand still; `u64::MAX` = no limit.
    rate: u64,
}

/// A rate or timetable that cannot be read.
/// `line` counts from 1; 0 where the text as a whole holds no rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: `{text}` is not a rule: {why}")]
pub struct BadRule {
    pub line: usize,
    pub text: String,
    pub why: &'static str,
}

/// Reads `20M`, `512Ki`, `1500000`, `none` (`u64::MAX`), `off` (0), in bytes a second. A written 0 is refused, since `off` says it.
pub fn parse_rate(text: &str) -> Option<u64> {
    match text {
        "none" => return Some(u64::MAX),
        "off" => return Some(0),
        _ => {}
    }
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let scale = match &text[digits..] {
        "" => 1,
        "k" | "K" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        _ => return None,
    };
    text[..digits].parse::<u64>().ok().filter(|rate| *rate > 0)?.checked_mul(scale)
}

impl Timetable {
    /// Reads a timetable; the error names the line.
    pub fn parse(text: &str) -> Result<Self, BadRule> {
        let mut rules = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let rule = line.split('#').next().unwrap_or_default().trim();
            if rule.is_empty() {
                continue;
            }
            rules.push(Rule::parse(rule).map_err(|why| BadRule { line: at + 1, text: rule.to_owned(), why })?);
        }
        if rules.is_empty() {
            return Err(BadRule { line: 0, text: String::new(), why: "the timetable holds no rule" });
        }
        Ok(Self { rules })
    }

    /// Bytes a second at this weekday (0 = Monday) and minute of the day. No rule = no limit.
    pub fn rate_at(&self, weekday: u8, minute: u16) -> u64 {
        let fits = |rule: &&Rule| rule.days & (1 << weekday) != 0 && rule.from <= minute && minute < rule.to;
        self.rules.iter().find(fits).map_or(u64::MAX, |rule| rule.rate)
    }
}

impl Rule {
    fn parse(text: &str) -> Result<Self, &'static str> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let (days, span, rate) = match words[..] {
            ["*", rate] => (0x7f, (0, 24 * 60), rate),
            [days, span, rate] => (parse_days(days)?, parse_span(span)?, rate),
            _ => return Err("write `DAYS HH:MM-HH:MM RATE` or `* RATE`"),
        };
        let rate = parse_rate(rate).ok_or("the rate is not like `20M`, `512Ki`, `none` or `off`")?;
        Ok(Self { days, from: span.0, to: span.1, rate })
    }
}

/// Ranges wrap around the week: `sat-mon` is three days.
fn parse_days(text: &str) -> Result<u8, &'static str> {
    const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
    let day =
        |word: &str| DAYS.iter().position(|day| *day == word).ok_or("days are `mon` to `sun`, `mon-fri` or `sat,sun`");
    if text == "*" {
        return Ok(0x7f);
    }
    let mut days = 0;
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (mut at, last) = (day(first)?, day(last)?);
        loop {
            days |= 1 << at;
            if at == last {
                break;
            }
            at = (at + 1) % 7;
        }
    }
    Ok(days)
}

/// `24:00` is allowed as an end.
fn parse_span(text: &str) -> Result<(u16, u16), &'static str> {
    let minute = |text: &str| -> Option<u16> {
        let (hours, minutes) = text.split_once(':')?;
        let (hours, minutes) = (hours.parse::<u16>().ok()?, minutes.parse::<u16>().ok()?);
        let minute = hours.checked_mul(60)?.checked_add(minutes)?;
        (minutes < 60 && minute <= 24 * 60).then_some(minute)
    };
    let (from, to) = text.split_once('-').ok_or("the time is not like `08:00-18:00`")?;
    match (minute(from), minute(to)) {
        (Some(from), Some(to)) if from < to => Ok((from, to)),
        (Some(_), Some(_)) => Err("the end is not after the begin; write two rules for a night"),
        _ => Err("the time is not like `08:00-18:00`"),
    }
}

/// The bucket of one transfer; none where there is no limit.
pub(super) fn pace(limit: &Limit, clock: &Arc<dyn Clock>) -> Option<Arc<dyn Pace>> {
    if *limit == Limit::None {
        return None;
    }
    let free_at = Arc::new(Mutex::new(Instant::now()));
    Some(Arc::new(Bucket { limit: limit.clone(), clock: Arc::clone(clock), free_at }))
}

/// Gives out bytes one after the other: each grant is due when the bytes before it have had their time.
#[derive(Debug)]
struct Bucket {
    limit: Limit,
    clock: Arc<dyn Clock>,
    /// When the next grant is due.
    free_at: Arc<Mutex<Instant>>,
}

/// How often a timetable is looked at while it says to stand still.
const LOOK: Duration = Duration::from_secs(10);

impl Bucket {
    /// Bytes a second now.
    fn rate(limit: &Limit, clock: &dyn Clock) -> u64 {
        match limit {
            Limit::None => u64::MAX,
            Limit::Fixed(rate) => *rate,
            Limit::Schedule(table) => {
                let now = clock.now().to_zoned_datetime(jiff::tz::TimeZone::system());
                let weekday = u8::try_from(now.weekday().to_monday_zero_offset()).unwrap_or(0);
                let minute = u16::try_from(i32::from(now.hour()) * 60 + i32::from(now.minute())).unwrap_or(0);
                table.rate_at(weekday, minute)
            }
        }
    }
}

impl Pace for Bucket {
    /// Due times are given out in the order in which the futures are first awaited; one that is dropped later has used up its share all
    /// the same.
    fn grant(&self, bytes: usize) -> BoxFuture<'static, ()> {
        let (limit, clock, free_at) = (self.limit.clone(), Arc::clone(&self.clock), Arc::clone(&self.free_at));
        async move {
            let rate = loop {
                match Self::rate(&limit, &*clock) {
                    0 => tokio::time::sleep(LOOK).await,
                    rate => break rate,
                }
            };
            if rate == u64::MAX {
                return;
            }
            let time = Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
            let due = {
                let mut free_at = free_at.lock().unwrap_or_else(PoisonError::into_inner);
                // What was not used in the past is not saved up.
                let due = (*free_at).max(Instant::now());
                *free_at = due + time;
                due
            };
            tokio::time::sleep_until(due).await;
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_week_is_read() {
        let table =
            Timetable::parse("mon-fri 08:00-18:00 2M # office\n\nsat,sun 00:00-24:00 off\n* none\n").expect("valid");
        assert_eq!(table.rate_at(0, 8 * 60), 2_000_000);
        assert_eq!(table.rate_at(0, 18 * 60), u64::MAX);
        assert_eq!(table.rate_at(6, 24 * 60 - 1), 0);
        let wrapped = Timetable::parse("sat-mon 00:00-01:00 1Ki").expect("valid");
        assert_eq!([5, 6, 0, 1].map(|day| wrapped.rate_at(day, 30)), [1024, 1024, 1024, u64::MAX]);
    }

    #[tokio::test]
    async fn streams_share_one_bucket() {
        let clock: Arc<dyn Clock> = Arc::new(crate::clock::SystemClock);
        assert!(pace(&Limit::None, &clock).is_none());
        let pace = pace(&Limit::Fixed(1_000_000), &clock).expect("a limit");
        let begin = Instant::now();
        let stream = async || {
            for _ in 0..10 {
                pace.grant(10_000).await;
            }
        };
        tokio::join!(stream(), stream());
        let took = begin.elapsed();
        assert!(took >= Duration::from_millis(185), "{took:?}");
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for bad in [
            "mon 8-18 2M",
            "mon 18:00-08:00 2M",
            "day 08:00-18:00 2M",
            "mon 08:00-18:00 2X",
            "mon",
            "mon 08:60-18:00 1",
            "mon 00:00-25:00 1",
            "mon 00:00-1093:00 1",
            "* 0",
        ] {
            assert_eq!(Timetable::parse(bad).expect_err(bad).line, 1, "{bad}");
        }
        assert!(Timetable::parse("# nothing").is_err());
        assert_eq!(parse_rate("20M"), Some(20_000_000));
        assert_eq!(parse_rate("99999999999G"), None);
        assert_eq!(parse_rate(""), None);
    }
}
