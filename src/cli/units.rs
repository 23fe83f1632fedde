//! Numbers as people write and read them: sizes, durations, instants. Pure.
//!
//! Shown sizes are binary (MiB, GiB) with three figures; what is typed may leave the `i` and the `B` out.
//!
//! What is printed is for people and rounded; programs read the exact numbers from `--json`.

use jiff::{SignedDuration, Timestamp};

/// `1.23 GiB`, `812 KiB`, `17 B`.
///
/// Rounds to the nearest, and goes to the next unit before four figures would stand; nothing lies above PiB.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    #[expect(clippy::cast_precision_loss, reason = "three figures are shown")]
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = match value {
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// `0.42 s`, `12.3 s`, `2 min 05 s`, `3 h 07 min`.
pub fn seconds(seconds: f64) -> String {
    if seconds < 9.995 {
        return format!("{seconds:.2} s");
    }
    if seconds < 59.95 {
        return format!("{seconds:.1} s");
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole seconds of a positive duration")]
    let whole = seconds.round() as u64;
    match whole {
        0..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}

/// `1,234,567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `12.5 %` of `whole`; nothing of nothing is `0 %`.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "0 %".to_owned();
    }
    #[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
    let value = 100.0 * part as f64 / whole as f64;
    format!("{value:.1} %")
}

/// Reads `256M`, `1GiB`, `4096`: powers of 1,024.
///
/// Case does not matter, `kB` is 1,024 too. No fractions and no sign: `1.5G` is refused rather than guessed.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let shift = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" | "ki" => 10,
        "m" | "mb" | "mib" | "mi" => 20,
        "g" | "gb" | "gib" | "gi" => 30,
        "t" | "tb" | "tib" | "ti" => 40,
        _ => return Err("write a size like `256M` or `2G`".to_owned()),
    };
    let number: u64 = text[..digits].parse().map_err(|_| "write a size like `256M` or `2G`".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "that is more bytes than can be counted".to_owned())
}

/// Reads `90s`, `30m`, `4h`, `7d`, or plain seconds.
///
/// `m` is minutes; months and years have no length and are refused. Whole numbers only.
pub fn parse_duration(text: &str) -> Result<std::time::Duration, String> {
    let wrong = || "write a duration like `90s`, `30m`, `4h` or `7d`".to_owned();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit = match &text[digits..] {
        "" | "s" => 1,
        "m" | "min" => 60,
        "h" => 3_600,
        "d" => 86_400,
        "w" => 604_800,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
    number.checked_mul(unit).map(std::time::Duration::from_secs).ok_or_else(wrong)
}

/// A point in time: an instant (`2026-12-01T02:00:00Z`), or a duration from now (`4h`).
///
/// A duration is kept as it is until [`Until::instant`], so that it counts from the call and not from the parsing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    At(Timestamp),
    In(std::time::Duration),
}

impl Until {
    /// An instant needs its offset: a local time would mean something else on another machine.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Ok(at) = text.parse() {
            return Ok(Self::At(at));
        }
        let from_now = text.strip_prefix('+').unwrap_or(text);
        parse_duration(from_now)
            .map(Self::In)
            .map_err(|_| "write an instant like `2026-12-01T02:00:00Z` or a duration from now like `4h`".to_owned())
    }

    /// RFC 3339, UTC, as the wire has it. What lies beyond the calendar becomes its end.
    pub fn instant(self, now: Timestamp) -> String {
        match self {
            Self::At(at) => at,
            Self::In(by) => {
                SignedDuration::try_from(by).ok().and_then(|by| now.checked_add(by).ok()).unwrap_or(Timestamp::MAX)
            }
        }
        .to_string()
    }
}

/// The wire's instants without the fraction: `2026-11-30 14:18:58`, UTC. Anything else is given back as it came.
pub fn instant(text: &str) -> String {
    match text.parse::<Timestamp>() {
        Ok(at) => at.strftime("%Y-%m-%d %H:%M:%S").to_string(),
        Err(_) => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_figures() {
        let shown = [0, 1023, 1024, 1_048_575, 1 << 20, 2_400_000_000, u64::MAX].map(size);
        assert_eq!(shown, ["0 B", "1023 B", "1.00 KiB", "1.00 MiB", "1.00 MiB", "2.24 GiB", "16384 PiB"]);
    }

    #[test]
    fn durations_are_read_and_shown() {
        assert_eq!(
            [0.0, 9.99, 59.9, 125.0, 11_220.0].map(seconds),
            ["0.00 s", "9.99 s", "59.9 s", "2 min 05 s", "3 h 07 min"]
        );
        assert_eq!(parse_duration("7d").unwrap().as_secs(), 604_800);
        assert!(parse_duration("7 days").is_err());
        assert!(parse_duration("99999999999999999999d").is_err());
    }

    #[test]
    fn sizes_are_read() {
        assert_eq!(parse_size("256M"), Ok(256 << 20));
        assert_eq!(parse_size("1 GiB"), Ok(1 << 30));
        assert!(["", "M", "-1", "1X", "99999999999T"].into_iter().all(|bad| parse_size(bad).is_err()));
    }

    #[test]
    fn an_end_is_an_instant_or_from_now() {
        let now: Timestamp = "2026-12-01T00:00:00Z".parse().unwrap();
        assert_eq!(Until::parse("+4h").unwrap().instant(now), "2026-12-01T04:00:00Z");
        assert_eq!(Until::parse("2026-12-01T02:00:00+02:00").unwrap().instant(now), "2026-12-01T00:00:00Z");
        assert!(Until::parse("tomorrow").is_err());
    }

    #[test]
    fn counts_and_shares() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([percent(1, 8), percent(0, 0)], ["12.5 %", "0 %"]);
    }
}
