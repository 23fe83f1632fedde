//! The list of everything the service does between requests.
//!
//! Each is a use case that finds its own work. Periods say how late something may be noticed when no signal comes: a lease
//! that ends is seen within a second or so, an export that is over within a minute.

use std::time::Duration;

use uuid::Uuid;

use super::background::Task;

const SECOND: Duration = Duration::from_secs(1);

/// One line per reconciler. `replica` names this process.
///
/// `replica-lives` is what the refusal of a second replica on a local store rests on: silent for a minute means gone.
pub fn reconcilers(replica: Uuid) -> Vec<Task> {
    vec![
        Task::new("expire-leases", SECOND, |app| async move { app.expire_leases().await.map(drop) }),
        Task::new("look-into-stagings", SECOND * 5, |app| async move {
            while app.look_into_stagings().await? > 0 {}
            Ok(())
        })
        .woken_by("stagings"),
        Task::new("deliver-callbacks", SECOND, |app| async move { app.deliver_callbacks().await })
            .woken_by("deliveries"),
        Task::new("bury-removed-nodes", SECOND * 60, |app| async move { app.bury_removed_nodes().await.map(drop) })
            .woken_by("nodes"),
        Task::new("delete-exports", SECOND * 60, |app| async move { app.delete_ended_exports().await.map(drop) })
            .woken_by(crate::app::versions::EXPORTS),
        Task::new(
            "forget-answers",
            Duration::from_secs(3_600),
            |app| async move { app.forget_answers().await.map(drop) },
        ),
        Task::new(
            "abort-orphans",
            Duration::from_secs(6 * 3_600),
            |app| async move { app.abort_orphans().await.map(drop) },
        ),
        // two, so that one large commit does not hold up the small ones
        commits("commit-uploads"),
        commits("commit-uploads-too"),
        Task::new("expire-uploads", Duration::from_secs(60), |app| async move { app.expire_uploads().await.map(drop) }),
        Task::new("reload-keys", Duration::from_secs(60), |app| async move { app.keys.reload(&app.db).await }),
        Task::new("replica-lives", Duration::from_secs(10), move |app| async move { app.replica_lives(replica).await }),
    ]
}

/// One runner of commits. Several may run: each commit is claimed by one.
fn commits(name: &'static str) -> Task {
    Task::new(name, Duration::from_secs(2), |app| async move { app.run_commits().await })
        .woken_by(crate::app::commit::TOPIC)
}
