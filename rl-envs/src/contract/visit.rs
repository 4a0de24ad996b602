//! Macros that treat all types of a column alike.

/// Replaces each storage of a value by one expression.
///
/// The value is an [`Obs`](crate::Obs), [`Actions`](crate::Actions) or [`Steps`](crate::Steps), whatever its element types.
///
/// ```
/// use rl_envs::{Obs, ObsRows, visit};
///
/// let obs = ObsRows::U8(vec![3, 4]);
/// assert_eq!(visit!(Obs, obs.as_ref(), |rows| rows.len()), Obs::U8(2));
/// ```
#[macro_export]
macro_rules! visit {
    (Obs, $obs:expr, |$x:pat_param| $body:expr $(,)?) => {
        match $obs {
            $crate::Obs::F32($x) => $crate::Obs::F32($body),
            $crate::Obs::U8($x) => $crate::Obs::U8($body),
        }
    };
    (Actions, $actions:expr, |$x:pat_param| $body:expr $(,)?) => {
        match $actions {
            $crate::Actions::Discrete($x) => $crate::Actions::Discrete($body),
            $crate::Actions::Continuous($x) => $crate::Actions::Continuous($body),
        }
    };
    (Steps, $steps:expr, |$x:pat_param| $body:expr $(,)?) => {{
        let steps = $steps;
        // In the order of the fields.
        let obs = $crate::visit!(Obs, steps.obs, |$x| $body);
        let actions = $crate::visit!(Actions, steps.actions, |$x| $body);
        let rewards = match steps.rewards {
            $x => $body,
        };
        let terminated = match steps.terminated {
            $x => $body,
        };
        let truncated = match steps.truncated {
            $x => $body,
        };
        let final_obs = $crate::visit!(Obs, steps.final_obs, |$x| $body);
        let masks = match steps.masks {
            Some([masks, final_masks]) => Some([
                match masks {
                    $x => $body,
                },
                match final_masks {
                    $x => $body,
                },
            ]),
            None => None,
        };
        $crate::Steps { obs, actions, rewards, terminated, truncated, final_obs, masks }
    }};
}

/// Computes a value from a storage by one expression.
///
/// The storage is that of an [`Obs`](crate::Obs) or of [`Actions`](crate::Actions), whatever its element type.
///
/// ```
/// use rl_envs::{ObsRows, either};
///
/// let obs = ObsRows::U8(vec![3, 4]);
/// assert_eq!(either!(Obs, &obs, |rows| rows.len()), 2);
/// ```
#[macro_export]
macro_rules! either {
    (Obs, $obs:expr, |$x:pat_param| $body:expr $(,)?) => {
        match $obs {
            $crate::Obs::F32($x) => $body,
            $crate::Obs::U8($x) => $body,
        }
    };
    (Actions, $actions:expr, |$x:pat_param| $body:expr $(,)?) => {
        match $actions {
            $crate::Actions::Discrete($x) => $body,
            $crate::Actions::Continuous($x) => $body,
        }
    };
}
