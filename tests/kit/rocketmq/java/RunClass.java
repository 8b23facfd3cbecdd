package penstock;

import java.util.Arrays;
import java.util.HashSet;
import java.util.Set;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.Request;
import org.junit.runner.manipulation.Filter;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/**
 * Runs one class of tests without the named methods, a line for each test as soon as it is over:
 * {@code penstock passed|failed|skipped METHOD MILLISECONDS REASON}. What hangs later loses nothing.
 */
public final class RunClass {
    private RunClass() {
    }

    public static void main(String[] arguments) throws Exception {
        Set<String> without = new HashSet<>(Arrays.asList(arguments).subList(1, arguments.length));
        JUnitCore runner = new JUnitCore();
        runner.addListener(new Lines());
        Class<?> tests = Class.forName(arguments[0]);
        runner.run(Request.aClass(tests).filterWith(new Filter() {
            @Override
            public boolean shouldRun(Description test) {
                return !test.isTest() || !without.contains(method(test));
            }

            @Override
            public String describe() {
                return "without " + without;
            }
        }));
        // Clients of the tests leave threads behind that would keep the process.
        Runtime.getRuntime().halt(0);
    }

    /** Without the number of a parameterized test. */
    private static String method(Description test) {
        String name = String.valueOf(test.getMethodName());
        return name.contains("[") ? name.substring(0, name.indexOf('[')) : name;
    }

    private static final class Lines extends RunListener {
        private long began;
        private Failure failure;

        @Override
        public void testStarted(Description test) {
            began = System.nanoTime();
            failure = null;
        }

        @Override
        public void testFailure(Failure problem) {
            problem.getException().printStackTrace();
            if (problem.getDescription().isTest()) {
                failure = problem;
            } else {
                say("failed", "the-class-itself", reason(problem));
            }
        }

        @Override
        public void testAssumptionFailure(Failure problem) {
            testFailure(problem);
        }

        @Override
        public void testFinished(Description test) {
            boolean passed = failure == null;
            say(passed ? "passed" : "failed", test.getMethodName(), passed ? "" : reason(failure));
        }

        @Override
        public void testIgnored(Description test) {
            began = System.nanoTime();
            say("skipped", String.valueOf(test.getMethodName()), "by the suite");
        }

        private void say(String how, String test, String why) {
            long millis = (System.nanoTime() - began) / 1_000_000;
            System.out.println(
                "\npenstock " + how + " " + test.replace(' ', '_') + " " + millis + " " + why);
            System.out.flush();
        }

        private static String reason(Failure problem) {
            String said = String.valueOf(problem.getException());
            String line = said.replaceAll("\\s+", " ");
            return line.substring(0, Math.min(300, line.length()));
        }
    }
}
