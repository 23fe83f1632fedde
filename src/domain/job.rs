//! What a job may declare, and the states a job goes through.
//!
//! Pure: a spec is judged as plain strings, so that the service, the agent and the command line say the same about it. References
//! (`D@V:PATH`) and dataset names are parsed elsewhere; here stand the rules about where inputs may lie in the job's directory,
//! what globs and shards mean, and which step may follow which. Invariant: a terminal state is never left.
//!
//! ```text
//! submitted -granted-> leased -released-> returning -settled-> finished | failed
//!     ^                  ^                  |   |
//!     |                  +-----granted------+   |               only after `preempted` or `expired`
//!     +------------------------settled----------+               after `preempted` or `expired`: it may run again
//! submitted, leased, returning -cancelled-> cancelled
//! ```

use super::lease::Reason;
use super::output::Outcome;
use super::shard::{MAX_SHARDS, Shard};
use crate::content::path::RelPath;
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

/// Most inputs, and most outputs, of one job.
pub const MAX_ITEMS: usize = 64;
/// Most globs of one input or output.
pub const MAX_GLOBS: usize = 256;
/// Longest glob, name or path in bytes.
pub const MAX_TEXT: usize = 1024;
/// The directory under the job's path that outputs are written to.
pub const OUT: &str = "out";

/// One declared input, as written.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// Where it comes to lie, relative to the job's directory.
    pub at: &'a str,
    pub include: &'a [String],
    pub exclude: &'a [String],
    /// `i/n`, see [`Shard`].
    pub shard: Option<&'a str>,
}

/// One declared output, as written.
#[derive(Debug, Clone, Copy)]
pub struct Output<'a> {
    pub name: &'a str,
    /// Globs below [`OUT`]; an empty list is a fault, since it would bring nothing back.
    pub path: &'a [String],
}

/// A job as declared. `inputs` holds `work` first when there is one.
#[derive(Debug, Clone, Default)]
pub struct Spec<'a> {
    pub name: &'a str,
    /// Only for the names in faults: `work` instead of `data[0]`, and `data` counted from what follows.
    pub has_work: bool,
    pub inputs: Vec<Input<'a>>,
    pub outputs: Vec<Output<'a>>,
    /// A directory of the job's own, judged like an input's `at`, since both lie in the same directory.
    pub checkpoint: Option<&'a str>,
    /// How long the job expects to run. These rules only ask that it be a positive number.
    pub hours: Option<f64>,
}

/// One thing wrong with a spec; `field` is where, as in the file (`data[1].at`).
/// Every text names its field and how to mend it; `app` hands the whole list to whoever submitted the job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("`{field}` is empty, longer than {MAX_TEXT} bytes or holds control characters")]
    BadText { field: String },
    #[error("`{field}` holds {count} items, {most} are allowed; split the job")]
    TooMany { field: String, count: usize, most: usize },
    #[error("`{field}` = {value:?} must be a relative path without `.` or `..`, such as `footage`")]
    NotRelative { field: String, value: String },
    #[error("`{field}` = {value:?} is where the job writes its outputs; stage the input elsewhere")]
    IsOut { field: String, value: String },
    #[error("`{field}` = {value:?} is the same place as `{other}`; give each input its own")]
    Equal { field: String, other: String, value: String },
    #[error("`{field}` = {value:?} and `{other}` lie one inside the other; give each input its own place")]
    Nested { field: String, other: String, value: String },
    #[error(
        "`{field}` = {value:?} is not a glob; escape `[`, `{{`, `*` and `?` with a backslash where they are meant literally"
    )]
    BadGlob { field: String, value: String },
    #[error("`{field}` = {value:?} must be `i/n` with 1 <= i <= n <= {MAX_SHARDS}")]
    BadShard { field: String, value: String },
    #[error(
        "`{field}` = {value:?} must be made of letters, digits, `.`, `_` and `-`, 64 at most, beginning with a letter or digit"
    )]
    BadName { field: String, value: String },
    #[error("`{field}` = {value:?} names two outputs; names must differ")]
    TwinOutput { field: String, value: String },
    #[error("`request.hours` must be a positive number")]
    BadHours,
}

/// Judges a spec; every fault is listed, so that one round of corrections is enough. Only a list of inputs or outputs that
/// is too long ends the judging at once, since what follows compares their items with each other. An empty answer says that
/// places, globs, shards and names are sound, not that what they refer to exists.
pub fn check(spec: &Spec<'_>) -> Vec<Fault> {
    let mut faults = Vec::new();
    text(spec.name, "name", &mut faults);
    if spec.hours.is_some_and(|hours| !(hours.is_finite() && hours > 0.0)) {
        faults.push(Fault::BadHours);
    }
    for (field, count) in [("data", spec.inputs.len()), ("output", spec.outputs.len())] {
        if count > MAX_ITEMS {
            faults.push(Fault::TooMany { field: field.to_owned(), count, most: MAX_ITEMS });
            return faults;
        }
    }
    check_places(spec, &mut faults);
    for (index, input) in spec.inputs.iter().enumerate() {
        let field = input_field(spec, index);
        globs(input.include, &format!("{field}.include"), &mut faults);
        globs(input.exclude, &format!("{field}.exclude"), &mut faults);
        if let Some(shard) = input.shard
            && Shard::parse(shard).is_none()
        {
            faults.push(Fault::BadShard { field: format!("{field}.shard"), value: shard.to_owned() });
        }
    }
    check_outputs(&spec.outputs, &mut faults);
    faults
}

fn check_outputs(outputs: &[Output<'_>], faults: &mut Vec<Fault>) {
    for (index, output) in outputs.iter().enumerate() {
        let field = format!("output[{index}].name");
        if !is_name(output.name) {
            faults.push(Fault::BadName { field: field.clone(), value: output.name.to_owned() });
        }
        if outputs.iter().take(index).any(|earlier| earlier.name == output.name) {
            faults.push(Fault::TwinOutput { field, value: output.name.to_owned() });
        }
        let field = format!("output[{index}].path");
        if output.path.is_empty() {
            faults.push(Fault::BadText { field: field.clone() });
        }
        globs(output.path, &field, faults);
    }
}

/// Places must neither be equal nor lie in each other, or two inputs would write the same files and a receipt's tree could
/// not be computed input by input. `out` is the job's own. What is no place at all is not held against later ones.
fn check_places(spec: &Spec<'_>, faults: &mut Vec<Fault>) {
    let mut places: Vec<(String, RelPath)> = Vec::new();
    let ats =
        spec.inputs.iter().enumerate().map(|(index, input)| (format!("{}.at", input_field(spec, index)), input.at));
    let checkpoint = spec.checkpoint.map(|path| ("checkpoint.path".to_owned(), path));
    for (field, value) in ats.chain(checkpoint) {
        let value_owned = || value.to_owned();
        let Ok(place) = RelPath::parse(value.as_bytes()) else {
            faults.push(Fault::NotRelative { field, value: value_owned() });
            continue;
        };
        if value.len() > MAX_TEXT || value.chars().any(char::is_control) {
            faults.push(Fault::BadText { field });
            continue;
        }
        if place.components().next() == Some(OUT.as_bytes()) {
            faults.push(Fault::IsOut { field, value: value_owned() });
            continue;
        }
        for (other, earlier) in &places {
            if *earlier == place {
                faults.push(Fault::Equal { field: field.clone(), other: other.clone(), value: value_owned() });
            } else if place.is_below(earlier) || earlier.is_below(&place) {
                faults.push(Fault::Nested { field: field.clone(), other: other.clone(), value: value_owned() });
            }
        }
        places.push((field, place));
    }
}

fn input_field(spec: &Spec<'_>, index: usize) -> String {
    match (spec.has_work, index) {
        (true, 0) => "work".to_owned(),
        (true, _) => format!("data[{}]", index - 1),
        (false, _) => format!("data[{index}]"),
    }
}

fn text(value: &str, field: &str, faults: &mut Vec<Fault>) {
    if value.trim().is_empty() || value.len() > MAX_TEXT || value.chars().any(char::is_control) {
        faults.push(Fault::BadText { field: field.to_owned() });
    }
}

/// An alphabet small enough that no name needs quoting in a message, a URL or a path.
fn is_name(name: &str) -> bool {
    name.len() <= 64
        && name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

/// One by one, so that the fault names the pattern.
fn globs(patterns: &[String], field: &str, faults: &mut Vec<Fault>) {
    if patterns.len() > MAX_GLOBS {
        faults.push(Fault::TooMany { field: field.to_owned(), count: patterns.len(), most: MAX_GLOBS });
        return;
    }
    for pattern in patterns {
        if let Err(BadGlob(value)) = glob_set(std::slice::from_ref(pattern)) {
            faults.push(Fault::BadGlob { field: field.to_owned(), value });
        }
    }
}

/// A pattern that is no glob.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a glob; escape `[`, `{{`, `*` and `?` with a backslash where they are meant literally")]
pub struct BadGlob(pub String);

/// Compiles globs the way all of Dray reads them: `*` and `?` stay within one path component, `**` crosses them.
/// A backslash takes the next character literally, on every platform. Patterns are compared with paths as bytes; whether one
/// matches a directory above a file is asked by [`super::selection::Rule`], not here. [`BadGlob`] names the pattern that is
/// empty, longer than [`MAX_TEXT`] or malformed.
pub fn glob_set(patterns: &[String]) -> Result<GlobSet, BadGlob> {
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        if pattern.is_empty() || pattern.len() > MAX_TEXT {
            return Err(BadGlob(pattern.clone()));
        }
        let glob = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build();
        set.add(glob.map_err(|_| BadGlob(pattern.clone()))?);
    }
    set.build().map_err(|_| BadGlob(patterns.join(", ")))
}

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Declared; no live lease.
    /// Also where a job returns to whose lease was preempted or expired, once its outputs have settled.
    Submitted,
    Leased,
    /// Lease released; outputs on their way.
    Returning,
    /// The last lease was released as finished and every required output is stored.
    Finished,
    /// The work failed, or a required output did not come back.
    Failed,
    Cancelled,
}

/// What happens to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A lease was granted.
    Granted,
    /// The live lease ended.
    Released(Reason),
    /// Every output due from the last lease reached its end; `Reason` is why that lease ended.
    Settled(Reason, Outcome),
    Cancelled,
}

impl State {
    pub const ALL: [Self; 6] =
        [Self::Submitted, Self::Leased, Self::Returning, Self::Finished, Self::Failed, Self::Cancelled];

    /// The word on the wire and in SQL.
    pub fn word(self) -> &'static str {
        match self {
            Self::Submitted => "submitted",
            Self::Leased => "leased",
            Self::Returning => "returning",
            Self::Finished => "finished",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.word() == word)
    }

    /// Nothing changes any more.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Finished | Self::Failed | Self::Cancelled)
    }

    /// The state after `step`; `None` where the step cannot be taken from here, and then nothing is to be written.
    ///
    /// `last` is why the newest lease ended, when it has: a job that returns from a preempted or expired lease may be leased
    /// anew, one that returns finished or failed work may not. It may be leased before what the earlier lease left has come
    /// back: that is settled by its own rows, and what arrives is late, never lost.
    pub fn after(self, step: Step, last: Option<Reason>) -> Option<Self> {
        match (self, step) {
            (Self::Submitted, Step::Granted) => Some(Self::Leased),
            (Self::Returning, Step::Granted) => last.is_some_and(Reason::may_run_again).then_some(Self::Leased),
            (Self::Leased, Step::Released(_)) => Some(Self::Returning),
            (Self::Returning, Step::Settled(reason, outcome)) => Some(match (reason, outcome) {
                (Reason::Finished, Outcome::Complete) => Self::Finished,
                (Reason::Finished, Outcome::Lacking) | (Reason::Failed, _) => Self::Failed,
                (Reason::Preempted | Reason::Expired, _) => Self::Submitted,
            }),
            (Self::Submitted | Self::Leased | Self::Returning, Step::Cancelled) => Some(Self::Cancelled),
            (_, Step::Granted | Step::Released(_) | Step::Settled(..) | Step::Cancelled) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn input(at: &str) -> Input<'_> {
        Input { at, include: &[], exclude: &[], shard: None }
    }

    fn faults(ats: &[&str]) -> Vec<Fault> {
        check(&Spec { name: "j", inputs: ats.iter().map(|at| input(at)).collect(), ..Spec::default() })
    }

    #[test]
    fn places_that_clash_are_refused() {
        assert_eq!(faults(&["footage", "footage-2", "a/b", "a/c"]), vec![]);
        assert!(matches!(faults(&["a", "a"])[..], [Fault::Equal { .. }]));
        assert!(matches!(faults(&["a/b", "a"])[..], [Fault::Nested { .. }]));
        assert!(matches!(faults(&["a", "a/b"])[..], [Fault::Nested { .. }]));
        for out in ["out", "out/x"] {
            assert!(matches!(faults(&[out])[..], [Fault::IsOut { .. }]), "{out}");
        }
        for bad in ["", "/abs", "../x", "a/../b", ".", "a//b"] {
            assert!(matches!(faults(&[bad])[..], [Fault::NotRelative { .. }]), "{bad}");
        }
        assert!(matches!(faults(&["a\nb"])[..], [Fault::BadText { .. }]));
        let both =
            check(&Spec { name: "j", has_work: true, inputs: vec![input("m"), input("m/x")], ..Spec::default() });
        assert!(
            matches!(&both[..], [Fault::Nested { field, other, .. }] if field == "data[0].at" && other == "work.at")
        );
    }

    #[test]
    fn names_globs_shards_and_hours_are_checked() {
        let globs = ["[".to_owned()];
        let bad_input = Input { at: "a", include: &globs, exclude: &globs, shard: Some("0/3") };
        let spec = Spec { name: " ", inputs: vec![bad_input], hours: Some(0.0), ..Spec::default() };
        assert_eq!(check(&spec).len(), 5);
        let good = ["detections/**".to_owned()];
        let outputs = ["a", "a", "-x", ""].map(|name| Output { name, path: &good }).to_vec();
        let found = check(&Spec { name: "j", outputs, ..Spec::default() });
        assert_eq!(found.len(), 3, "{found:?}");
        let empty = check(&Spec { name: "j", outputs: vec![Output { name: "a", path: &[] }], ..Spec::default() });
        assert_eq!(empty.len(), 1);
    }

    proptest! {
        #[test]
        fn a_terminal_state_is_never_left(walk in proptest::collection::vec(step(), 0..40)) {
            let (mut state, mut last) = (State::Submitted, None);
            for step in walk {
                let was_over = state.is_over();
                let Some(next) = state.after(step, last) else { continue };
                prop_assert!(!was_over, "{:?} left by {:?}", state, step);
                if step == Step::Granted && state == State::Returning {
                    prop_assert!(last.is_some_and(Reason::may_run_again));
                }
                if let Step::Released(reason) = step {
                    prop_assert_eq!(state, State::Leased);
                    last = Some(reason);
                }
                if next == State::Finished {
                    let settled = matches!(step, Step::Settled(Reason::Finished, Outcome::Complete));
                    prop_assert!(settled);
                }
                state = next;
            }
        }
    }

    fn step() -> impl Strategy<Value = Step> {
        let reason =
            prop_oneof![Just(Reason::Finished), Just(Reason::Failed), Just(Reason::Preempted), Just(Reason::Expired)];
        let outcome = prop_oneof![Just(Outcome::Complete), Just(Outcome::Lacking)];
        prop_oneof![
            4 => Just(Step::Granted),
            4 => reason.clone().prop_map(Step::Released),
            4 => (reason, outcome).prop_map(|(reason, outcome)| Step::Settled(reason, outcome)),
            1 => Just(Step::Cancelled),
        ]
    }
}
